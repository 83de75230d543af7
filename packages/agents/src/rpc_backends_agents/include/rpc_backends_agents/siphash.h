// SipHash-2-4, a keyed 64-bit hash (Aumasson and Bernstein, 2012). It also serves as a stateless random generator: a
// number is the hash of its purpose, so the order in which numbers are drawn does not matter.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace rpc_backends {

class SipHash {
 public:
  SipHash(uint64_t key0, uint64_t key1)
      : v0_(0x736f6d6570736575ULL ^ key0),
        v1_(0x646f72616e646f6dULL ^ key1),
        v2_(0x6c7967656e657261ULL ^ key0),
        v3_(0x7465646279746573ULL ^ key1) {}

  void add(const void* data, size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    total_ += size;
    if (pending_ > 0) {
      while (pending_ < 8 && size > 0) {
        take_byte(*bytes++);
        --size;
      }
      if (pending_ < 8) {
        return;
      }
      compress(word_);
      word_ = 0;
      pending_ = 0;
    }
    for (; size >= 8; size -= 8, bytes += 8) {
      uint64_t word = 0;
      std::memcpy(&word, bytes, 8);
      if constexpr (std::endian::native == std::endian::big) {
        word = __builtin_bswap64(word);
      }
      compress(word);
    }
    while (size > 0) {
      take_byte(*bytes++);
      --size;
    }
  }

  // Adds a text with its length, so that different sequences of texts have different hashes.
  void add(std::string_view text) {
    add_number(text.size());
    add(text.data(), text.size());
  }

  void add_number(uint64_t number) {
    unsigned char bytes[8];
    for (int i = 0; i < 8; ++i) {
      bytes[i] = static_cast<unsigned char>(number >> (8 * i));
    }
    add(bytes, sizeof(bytes));
  }

  uint64_t finish() const {
    SipHash end = *this;
    end.compress(word_ | (total_ << 56));
    end.v2_ ^= 0xff;
    for (int i = 0; i < 4; ++i) {
      end.round();
    }
    return end.v0_ ^ end.v1_ ^ end.v2_ ^ end.v3_;
  }

 private:
  void take_byte(unsigned char byte) {
    word_ |= static_cast<uint64_t>(byte) << (8 * pending_);
    ++pending_;
  }

  void compress(uint64_t word) {
    v3_ ^= word;
    round();
    round();
    v0_ ^= word;
  }

  void round() {
    v0_ += v1_;
    v1_ = std::rotl(v1_, 13);
    v1_ ^= v0_;
    v0_ = std::rotl(v0_, 32);
    v2_ += v3_;
    v3_ = std::rotl(v3_, 16);
    v3_ ^= v2_;
    v0_ += v3_;
    v3_ = std::rotl(v3_, 21);
    v3_ ^= v0_;
    v2_ += v1_;
    v1_ = std::rotl(v1_, 17);
    v1_ ^= v2_;
    v2_ = std::rotl(v2_, 32);
  }

  uint64_t v0_, v1_, v2_, v3_;
  uint64_t word_ = 0;
  uint64_t total_ = 0;
  int pending_ = 0;
};

}  // namespace rpc_backends
