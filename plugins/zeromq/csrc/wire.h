// How the parts of a message travel as ZeroMQ messages, and are put together again.
//
//   head      kind, version, number of parts, the size of each and where it is; then the small parts,
//             each at a multiple of 16 bytes
//   frames    of the same ZeroMQ message: the larger parts, one each
//   pieces    ZeroMQ messages of their own, one frame each: the parts that are larger still
//
// Small parts share a frame because each costs libzmq as much as a small message. Large ones come in
// pieces because libzmq hands out nothing before it is whole, and hears no heartbeat in between: a frame
// that takes long to arrive would look like a peer that is gone. Pieces are copied to their place while
// the next ones are still on their way.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace rpc_backends::zeromq {

static_assert(std::endian::native == std::endian::little, "frames are little-endian");

namespace wire {

inline constexpr uint8_t kVersion = 1;

enum class Kind : uint8_t {
  kMessage = 1,
  kRefusal = 2,  // nothing more is taken by this connection; a text says why
  kPing = 3,     // on a Unix socket: asks for a kPong
  kPong = 4,
};

// What a head begins with. `count` sizes of 64 bits follow, each with the place of the part in front.
struct Header {
  uint8_t kind = 0;
  uint8_t version = kVersion;
  uint16_t unused = 0;
  uint32_t count = 0;
};
static_assert(sizeof(Header) == 8);

enum class Place : uint8_t { kHead = 0, kFrame = 1, kPieces = 2 };

inline constexpr int kPlaceShift = 62;
inline constexpr uint64_t kSizeMask = (uint64_t{1} << kPlaceShift) - 1;

inline constexpr size_t kMostParts = 65536;
inline constexpr size_t kLongestReason = 500;

// A multiple of 16, for any element of any tensor.
constexpr size_t aligned(size_t size) {
  return (size + 15) / 16 * 16;
}

// Where the parts in a head begin.
constexpr size_t begin_of_parts(size_t count) {
  return aligned(sizeof(Header) + count * sizeof(uint64_t));
}

// What a frame may hold in all, for ZMQ_MAXMSGSIZE: parts of `max_message` bytes, and what goes with them.
constexpr uint64_t largest_frame(uint64_t max_message) {
  return max_message + kMostParts * (sizeof(uint64_t) + 16) + 4096;
}

}  // namespace wire

}  // namespace rpc_backends::zeromq
