// How what comes by a stream becomes messages again; see wire.h. Nothing of it is believed.
//
//   message   a header, the size of each part, then the parts; the large ones are read to where they stay
//   refusal   a header, a text
//   ping, pong   a header
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "rpc_backends_agents/transport.h"
#include "wire.h"

namespace rpc_backends::zeromq {

class MessageReader {
 public:
  explicit MessageReader(uint64_t max_message) : max_message_(max_message) {}

  enum class Outcome {
    kBlocked,    // there is nothing more to read for now
    kMessage,    // in parts()
    kRefusal,    // text() says why
    kPing,
    kPong,
    kEnd,        // of the connection; text() says why, if there is more to say
    kMalformed,  // text() says how
  };

  // Reads from `fd`, which does not wait. Not to be called again after one of the last two.
  Outcome next(int fd);

  // Parts of the message that has come whole, to be taken.
  Parts& parts() { return parts_; }
  const std::string& text() const { return text_; }

  // Whether a message has begun and not ended.
  bool is_in_message() const { return stage_ != Stage::kHeader; }

 private:
  enum class Stage { kHeader, kSizes, kParts, kText };

  Outcome read(int fd);
  // Goes on with what is in the buffer; kBlocked if that is not enough.
  Outcome parse();
  bool take(void* to, size_t size);
  Outcome begin();
  Outcome begin_message(size_t count);
  Outcome begin_parts();
  Outcome fill_parts();
  Outcome malformed(const std::string& how);
  size_t list_places(iovec* places, size_t most);
  void advance(size_t size);

  const uint64_t max_message_;
  Stage stage_ = Stage::kHeader;
  std::vector<uint64_t> sizes_;
  size_t sizes_read_ = 0;  // bytes
  Parts parts_;
  size_t part_ = 0;    // the next to be filled
  size_t offset_ = 0;  // in that
  std::string text_;

  alignas(8) std::array<char, 16384> buffer_;
  size_t begin_ = 0, end_ = 0;
  bool drained_ = false;  // the last read has taken all that there was
};

}  // namespace rpc_backends::zeromq
