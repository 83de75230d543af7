// The wire format: the UCP active messages that workers of a group send to each other.
//
//   greeting   opens a link: who the sender is, its proof, and the token that the messages of the link carry; then a
//              proof of identity.h, if workers have certificates
//   message    its sizes and small parts; and the first large part, if the rest fits into the header
//   part       one further large part of a message
//   device part  one part of a message that is in memory of an accelerator at both ends
//   goodbye    closes a link
//
// A worker's link to a peer carries its requests and its replies; the peer has a link of its own in the other
// direction. Until the peer has answered with its own greeting, a link carries only the greeting. A worker accepts only
// messages with the token of a greeting whose proof was valid.
//
// Small messages are numbered in one sequence and large ones in another, and each sequence keeps its order. So a small
// message does not wait for the large ones that were sent before it.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

namespace rpc_backends::ucx {

static_assert(std::endian::native == std::endian::little, "numbers are little-endian");

namespace wire {

inline constexpr uint32_t kMagic = 0x33584355;  // "UCX3"

// The ids of the active messages.
enum class Kind : unsigned { kGreeting = 0, kMessage = 1, kPart = 2, kGoodbye = 3, kDevicePart = 4 };

inline constexpr size_t kProofSize = 32;
using Proof = std::array<char, kProofSize>;

inline std::string text_of(const Proof& proof) {
  return {proof.data(), proof.size()};
}

// 128 random bits, which only the two ends of a link know. All zero: none.
struct Token {
  uint64_t low = 0, high = 0;
  friend bool operator==(const Token&, const Token&) = default;
  explicit operator bool() const { return low != 0 || high != 0; }
};

// Each of these is the header of an active message. A header is not aligned, so copy it.

struct Greeting {
  uint32_t magic = kMagic;
  uint32_t from = 0;  // the sender's worker id
  Token token;        // of the sender's link
  Token about;        // of the receiver's link, if the sender knows it
  Proof proof{};
  uint64_t number = 0;  // of the sender's link; later ones have larger numbers
  uint64_t opened = 0;  // endpoints of the sender to this receiver, with that of this greeting
};
static_assert(sizeof(Greeting) == 88);

// Before the sizes of the parts (64 bits each, the largest bit is kLarge) and the small parts, each aligned to 16
// bytes.
struct Message {
  Token token;
  uint64_t number = 0;     // 0, 1, 2... on a link; of a large message, kFirstLarge and so on
  uint32_t count = 0;      // of parts
  uint32_t in_header = 0;  // whether sizes and small parts follow in the header; otherwise they are the payload
};
static_assert(sizeof(Message) == 32);

// Before one large part.
struct PartOfMessage {
  Token token;
  uint64_t number = 0;  // of the message
  uint64_t index = 0;   // of the part
};
static_assert(sizeof(PartOfMessage) == 32);

// Before one part in memory of an accelerator.
struct DevicePart {
  PartOfMessage part;
  uint32_t device = 0;          // the index of the receiver's device
  std::array<char, 28> type{};  // the device's type by torch's name, padded with zeros
};
static_assert(sizeof(DevicePart) == 64);

struct Goodbye {
  Token token;
  // Messages with smaller numbers were read by the receiver before their memory was given up.
  uint64_t complete = 0;
  uint64_t complete_large : 48 = 0;  // the same of large ones, without kFirstLarge
  uint64_t comes_back : 8 = 0;       // whether the receiver may greet again
  // How many of it come: one on each connection, so that they are behind all that was sent.
  uint64_t copies : 8 = 1;
  // The reason follows as text.
};
static_assert(sizeof(Goodbye) == 32);

inline constexpr uint64_t kLarge = uint64_t{1} << 63;
// A message of this many bytes is large.
inline constexpr uint64_t kLargeMessage = uint64_t{64} << 10;
// The number of the first large message.
inline constexpr uint64_t kFirstLarge = uint64_t{1} << 63;
inline constexpr size_t kMaxParts = 65536;
inline constexpr size_t kLongestReason = 500;

// Bytes of the largest small part.
inline constexpr size_t kMaxSmall = 4096;

// Rounds up to a multiple of 16, the alignment that any tensor accepts.
constexpr size_t aligned(size_t size) {
  return (size + 15) / 16 * 16;
}

// The offset at which the small parts begin, behind the sizes.
constexpr size_t begin_of_parts(size_t count) {
  return aligned(count * sizeof(uint64_t));
}

}  // namespace wire

}  // namespace rpc_backends::ucx
