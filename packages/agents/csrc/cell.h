// A value that one thread writes and others read at the same time, without a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>

namespace rpc_backends {

// If two threads write at the same time, one value is lost. A reader gets no value while one is being written.
template <typename Value>
class Cell {
  static_assert(std::is_trivially_copyable_v<Value> && sizeof(Value) % sizeof(uint64_t) == 0);

 public:
  void write(const Value& value) {
    Words words;
    std::memcpy(words.data(), &value, sizeof(Value));
    uint64_t version = version_.load(std::memory_order_relaxed);
    // An odd version: a value is being written.
    if (version % 2 == 1 || !version_.compare_exchange_strong(version, version + 1, std::memory_order_relaxed)) {
      return;
    }
    std::atomic_thread_fence(std::memory_order_release);
    for (size_t i = 0; i < words.size(); ++i) {
      words_[i].store(words[i], std::memory_order_relaxed);
    }
    version_.store(version + 2, std::memory_order_release);
  }

  // Returns the value on the only thread that may write it now.
  Value own() const {
    Words words;
    for (size_t i = 0; i < words.size(); ++i) {
      words[i] = words_[i].load(std::memory_order_relaxed);
    }
    Value value;
    std::memcpy(static_cast<void*>(&value), words.data(), sizeof(Value));
    return value;
  }

  std::optional<Value> read() const {
    for (int tries = 0; tries < 100; ++tries) {
      const uint64_t version = version_.load(std::memory_order_acquire);
      if (version == 0) {
        return std::nullopt;  // never written
      }
      Words words;
      for (size_t i = 0; i < words.size(); ++i) {
        words[i] = words_[i].load(std::memory_order_relaxed);
      }
      std::atomic_thread_fence(std::memory_order_acquire);
      if (version % 2 == 0 && version_.load(std::memory_order_relaxed) == version) {
        Value value;
        std::memcpy(static_cast<void*>(&value), words.data(), sizeof(Value));
        return value;
      }
    }
    return std::nullopt;
  }

 private:
  using Words = std::array<uint64_t, sizeof(Value) / sizeof(uint64_t)>;

  std::atomic<uint64_t> version_{0};
  std::array<std::atomic<uint64_t>, sizeof(Value) / sizeof(uint64_t)> words_{};
};

}  // namespace rpc_backends
