// The wire format: what the bytes of a connection mean, once both sides have greeted each other; see greeting.h.
//
//   message      a header, the size of each part (64 bits), then the parts
//   refusal      a header, a text
//   ping, pong   a header
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace rpc_backends::zeromq {

static_assert(std::endian::native == std::endian::little, "numbers are little-endian");

namespace wire {

inline constexpr uint8_t kVersion = 3;

enum class Kind : uint8_t {
  kMessage = 1,
  kRefusal = 2,  // nothing more is accepted on this connection; a text says why
  kPing = 3,     // asks for a kPong
  kPong = 4,
};

// `count`: the number of parts of a message, or of bytes of a refusal's text.
struct Header {
  uint8_t kind = 0;
  uint8_t version = kVersion;
  uint16_t unused = 0;
  uint32_t count = 0;
};
static_assert(sizeof(Header) == 8);

inline constexpr size_t kMaxParts = 65536;

inline constexpr size_t kLongestReason = 500;

// Rounds up to a multiple of 16, the alignment that any tensor accepts.
constexpr size_t aligned(size_t size) {
  return (size + 15) / 16 * 16;
}

}  // namespace wire

}  // namespace rpc_backends::zeromq
