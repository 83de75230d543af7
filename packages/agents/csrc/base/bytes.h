// Reads and writes the fields of a frame. The reader checks every length before using it.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace rpc_backends {

// A received message is not valid or not supported by this version; the text says why.
class BadFrame : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

static_assert(std::endian::native == std::endian::little, "frames are little-endian");

class Writer {
 public:
  template <typename T>
  void put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    put(&value, sizeof value);
  }

  void put(const void* data, size_t size) {
    const auto* begin = static_cast<const uint8_t*>(data);
    bytes_.insert(bytes_.end(), begin, begin + size);
  }

  size_t size() const { return bytes_.size(); }

  std::vector<uint8_t>& bytes() { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

class Reader {
 public:
  Reader(const void* data, size_t size) : next_(static_cast<const uint8_t*>(data)), left_(size) {}

  template <typename T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }

  const uint8_t* take(size_t size) {
    if (size > left_) {
      throw BadFrame("it ends in the middle of a field");
    }
    const uint8_t* here = next_;
    next_ += size;
    left_ -= size;
    return here;
  }

  size_t left() const { return left_; }

 private:
  const uint8_t* next_;
  size_t left_;
};

}  // namespace rpc_backends
