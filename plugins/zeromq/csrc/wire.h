// The wire format: what the bytes of a connection mean, once both sides have greeted each other; see greeting.h.
//
//   message      a header, the size of each part (64 bits), then the parts
//   piece        a header, a piece's head, the size of each part of which it has bytes, then these bytes
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
  kPiece = 5,  // of a large message
};

// `count`: the number of parts of a message or a piece, or of bytes of a refusal's text.
struct Header {
  uint8_t kind = 0;
  uint8_t version = kVersion;
  uint16_t unused = 0;
  uint32_t count = 0;
};
static_assert(sizeof(Header) == 8);

inline constexpr size_t kMaxParts = 65536;

// A piece of a large message: consecutive bytes of its parts. The pieces of a message may travel on any connections of
// a link, so they arrive in any order.
struct PieceHead {
  uint64_t message = 0;  // its number, in this direction of the link
  uint64_t total = 0;    // bytes of all its parts
  uint32_t parts = 0;    // the number of its parts
  uint32_t first = 0;    // the part that has the first byte
  uint64_t offset = 0;   // of that byte within the part
  uint64_t size = 0;     // bytes of the piece
};
static_assert(sizeof(PieceHead) == 40);

// A message of this many bytes is large.
inline constexpr uint64_t kLarge = uint64_t{64} << 10;
// Bytes that a piece has at least, except the last one of a message.
inline constexpr uint64_t kLeastPiece = uint64_t{16} << 10;
// The connections of a link that carry pieces only.
inline constexpr uint32_t kMaxLanes = 16;

inline constexpr size_t kLongestReason = 500;

// Rounds up to a multiple of 16, the alignment that any tensor accepts.
constexpr size_t aligned(size_t size) {
  return (size + 15) / 16 * 16;
}

}  // namespace wire

}  // namespace rpc_backends::zeromq
