// A value that one thread writes and others read at the same time, without a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>

namespace rpc_backends {

// The bytes of a value. What a reader loads is only whole if no thread stores at the same time.
template <typename Value>
class Words {
  static_assert(std::is_trivially_copyable_v<Value> && sizeof(Value) % sizeof(uint64_t) == 0);

 public:
  void store(const Value& value) {
    Array words;
    std::memcpy(words.data(), &value, sizeof(Value));
    for (size_t i = 0; i < words.size(); ++i) {
      words_[i].store(words[i], std::memory_order_relaxed);
    }
  }

  Value load() const {
    Array words;
    for (size_t i = 0; i < words.size(); ++i) {
      words[i] = words_[i].load(std::memory_order_relaxed);
    }
    Value value;
    std::memcpy(static_cast<void*>(&value), words.data(), sizeof(Value));
    return value;
  }

 private:
  using Array = std::array<uint64_t, sizeof(Value) / sizeof(uint64_t)>;
  std::array<std::atomic<uint64_t>, sizeof(Value) / sizeof(uint64_t)> words_{};
};

// If two threads write at the same time, one value is lost. A reader gets no value while one is being written.
template <typename Value>
class Cell {
 public:
  void write(const Value& value) {
    uint64_t version = version_.load(std::memory_order_relaxed);
    // An odd version: a value is being written.
    if (version % 2 == 1 || !version_.compare_exchange_strong(version, version + 1, std::memory_order_relaxed)) {
      return;
    }
    std::atomic_thread_fence(std::memory_order_release);
    words_.store(value);
    version_.store(version + 2, std::memory_order_release);
  }

  std::optional<Value> read() const {
    for (int tries = 0; tries < 100; ++tries) {
      const uint64_t version = version_.load(std::memory_order_acquire);
      if (version == 0) {
        return std::nullopt;  // never written
      }
      const Value value = words_.load();
      std::atomic_thread_fence(std::memory_order_acquire);
      if (version % 2 == 0 && version_.load(std::memory_order_relaxed) == version) {
        return value;
      }
    }
    return std::nullopt;
  }

 private:
  std::atomic<uint64_t> version_{0};
  Words<Value> words_;
};

}  // namespace rpc_backends
