// Parses messages from a byte stream; see wire.h. All input is untrusted.
//
//   message   a header, the size of each part, then the parts; large parts are read directly to their place
//   piece     a header, a head, sizes, then bytes that are read directly to their places in the message
//   refusal   a header, a text
//   ping, pong   a header
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "assembly.h"
#include "channel.h"
#include "rpc_backends_agents/transport.h"
#include "wire.h"

namespace rpc_backends::zeromq {

// The reason if a peer has acknowledged nothing for so long that the system has ended the connection.
inline constexpr const char* kNoHeartbeat = "no heartbeat";

class MessageReader {
 public:
  // `assembly`: puts pieces together, and is called for when there is one; null if none may arrive.
  explicit MessageReader(uint64_t max_message, std::function<Assembly&()> assembly = nullptr)
      : max_message_(max_message), assembly_(std::move(assembly)) {}

  enum class Outcome {
    kBlocked,  // no more data for now
    kPart,     // of a message has arrived; there may be more data
    kMessage,  // in parts()
    kRefusal,  // text() gives the reason
    kPing,
    kPong,
    kEnd,        // of the connection; text() gives the reason, if any
    kMalformed,  // text() says what is wrong
  };

  // Reads from the channel at most once. Do not call it again after one of the last two outcomes.
  Outcome next(Channel& channel);

  // Bytes that were read so far.
  uint64_t bytes_read() const { return bytes_read_; }

  // The parts of the complete message, to be moved out.
  Parts& parts() { return parts_; }
  const std::string& text() const { return text_; }

  // The number of bytes that are still to be read of the message, or piece, that is arriving; not all are counted if
  // there are more than `most`.
  size_t bytes_left(size_t most) const;

  // Whether a message is incomplete.
  bool is_in_message() const { return stage_ != Stage::kHeader; }

 private:
  enum class Stage { kHeader, kPieceHead, kSizes, kParts, kText };

  // Parses the buffer; returns kBlocked if it does not hold enough.
  Outcome parse();
  Outcome parse_buffer();
  Outcome read(Channel& channel);
  bool take(void* to, size_t size);
  Outcome begin();
  Outcome begin_message(size_t count);
  Outcome begin_parts();
  Outcome begin_piece();
  Outcome finish_parts();
  Outcome fill_parts();
  Outcome malformed(const std::string& how);
  size_t list_places(iovec* places, size_t most);
  void advance(size_t size);

  const uint64_t max_message_;
  const std::function<Assembly&()> assembly_;
  Stage stage_ = Stage::kHeader;
  std::vector<uint64_t> sizes_;
  size_t sizes_read_ = 0;  // bytes
  bool is_piece_ = false;
  wire::PieceHead piece_;
  Parts parts_;        // of the message, or the places of the piece
  size_t part_ = 0;    // the part to fill next
  size_t offset_ = 0;  // within the part
  std::string text_;

  alignas(8) std::array<char, 16384> buffer_;
  size_t begin_ = 0, end_ = 0;
  bool drained_ = false;  // the last read took all available data
  uint64_t bytes_read_ = 0;
};

}  // namespace rpc_backends::zeromq
