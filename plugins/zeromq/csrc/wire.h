// The wire format: how the parts of a message travel as ZeroMQ messages, and are assembled again.
//
//   head      kind, version, number of parts, size and place of each part; then the small parts, each
//             aligned to 16 bytes
//   frames    of the same ZeroMQ message: the larger parts
//   pieces    separate ZeroMQ messages: the largest parts
//
// Small parts share a frame, because each frame costs libzmq as much as a small message. The largest parts
// are split into pieces, because libzmq delivers only complete messages and sees no heartbeat in between: a
// frame that takes long to arrive would look like a lost peer. Pieces are copied to their place while the next
// ones are still arriving.
//
// No frame is larger than kLargestFrame; longer data is sent in several frames. libzmq allocates a frame as soon
// as its size is announced, even on an unauthenticated connection. The limit of a connection cannot be raised
// later, so kLargestFrame bounds the memory that an unauthenticated process can make a worker hold.
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
  kRefusal = 2,  // nothing more is accepted on this connection; a text says why
  kPing = 3,     // on a Unix socket: asks for a kPong
  kPong = 4,
};

// The start of a head. `count` fields of 64 bits follow: the place of a part in the upper bits, then its size.
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

// Bytes of the largest part in the head. Measured: copying this many bytes costs less than a frame.
inline constexpr size_t kMaxInHead = 4096;

// Bytes of the largest piece, and of the largest part that is not split. Measured: this many bytes arrive sooner in
// one ZeroMQ message than in several, and stay in the cache between the two copies.
inline constexpr size_t kMaxInMessage = size_t{1} << 20;

// Bytes of the largest frame. Measured with bench/run.py: joining such frames again takes less time than encryption.
inline constexpr size_t kLargestFrame = size_t{128} << 10;

// The same without encryption. There any process can connect, so a small limit would protect nothing.
inline constexpr size_t kLargestPlainFrame = kMaxInMessage;

// The value of ZMQ_MAXMSGSIZE, which includes the 33 bytes that CURVE adds to a frame.
constexpr int64_t on_wire(size_t largest_frame) {
  return static_cast<int64_t>(largest_frame) + 64;
}
inline constexpr size_t kLongestReason = 500;

// Rounds up to a multiple of 16, the alignment that any tensor accepts.
constexpr size_t aligned(size_t size) {
  return (size + 15) / 16 * 16;
}

// The offset at which the parts in a head begin.
constexpr size_t begin_of_parts(size_t count) {
  return aligned(sizeof(Header) + count * sizeof(uint64_t));
}

}  // namespace wire

}  // namespace rpc_backends::zeromq
