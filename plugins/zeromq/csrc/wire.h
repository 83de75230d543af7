// How the parts of a message travel as ZeroMQ messages, and are put together again.
//
//   head      kind, version, number of parts, the size of each and where it is; then the small parts,
//             each at a multiple of 16 bytes
//   frames    of the same ZeroMQ message: the larger parts
//   pieces    ZeroMQ messages of their own: the parts that are larger still
//
// Small parts share a frame because each costs libzmq as much as a small message. Large ones come in
// pieces because libzmq hands out nothing before it is whole, and hears no heartbeat in between: a frame
// that takes long to arrive would look like a peer that is gone. Pieces are copied to their place while
// the next ones are still on their way.
//
// No frame is larger than kLargestFrame; what is longer goes in several. libzmq allocates a frame when its size is announced, also for
// a connection that has not been authenticated, and its limit is one for the life of a connection. So
// the limit is what a pending can make a worker hold.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace rpc_backends::zeromq {

static_assert(std::endian::native == std::endian::little, "frames are little-endian");

namespace wire {

inline constexpr uint8_t kVersion = 2;

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
  uint16_t head_frames = 1;
  uint32_t count = 0;
};
static_assert(sizeof(Header) == 8);

enum class Place : uint8_t { kHead = 0, kFrame = 1, kPieces = 2 };

inline constexpr int kPlaceShift = 62;
inline constexpr uint64_t kSizeMask = (uint64_t{1} << kPlaceShift) - 1;

inline constexpr size_t kMaxParts = 65536;

// Bytes of a part. Measured: a copy of as many costs less than a frame.
inline constexpr size_t kMaxInHead = 4096;

// Bytes of a part or a piece. Measured: as many arrive sooner in one ZeroMQ message than in several, and stay in
// the cache between the two copies.
inline constexpr size_t kMaxInMessage = size_t{1} << 20;

// Bytes; measured, see bench/run.py: encryption takes longer than the copy that many frames need.
inline constexpr size_t kLargestFrame = size_t{128} << 10;

// The same without encryption, which keeps nobody out anyway.
inline constexpr size_t kLargestPlainFrame = kMaxInMessage;

// For ZMQ_MAXMSGSIZE, which counts what CURVE adds to a frame: 33 bytes.
constexpr int64_t on_wire(size_t largest_frame) {
  return static_cast<int64_t>(largest_frame) + 64;
}
inline constexpr size_t kLongestReason = 500;

// A multiple of 16, for any element of any tensor.
constexpr size_t aligned(size_t size) {
  return (size + 15) / 16 * 16;
}

// Where the parts in a head begin.
constexpr size_t begin_of_parts(size_t count) {
  return aligned(sizeof(Header) + count * sizeof(uint64_t));
}

}  // namespace wire

}  // namespace rpc_backends::zeromq
