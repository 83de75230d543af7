// Puts large messages together, whose pieces arrive on the connections of a link. All input is untrusted.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "rpc_backends_agents/transport.h"
#include "wire.h"

namespace rpc_backends::zeromq {

// A piece does not fit to its message; the text says why.
class BadPiece : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Assembly {
 public:
  // `max_message`: bytes of one message. Each connection of a link may be within another one, so unfinished messages
  // may have that many bytes for each connection.
  explicit Assembly(uint64_t max_message);

  // The most unfinished messages. Their parts are limited as their bytes are.
  static constexpr size_t kMost = 1024;

  // A piece has begun to arrive. `sizes`: of the parts of which it has bytes. Returns the places for its bytes; no
  // other piece gets them. Throws BadPiece or std::bad_alloc.
  Parts begin(const wire::PieceHead& head, const std::vector<uint64_t>& sizes);

  // All bytes of a piece are in their places. Returns the message if it is complete.
  std::optional<Parts> finish(uint64_t message);

 private:
  // A byte of a message: a part, and an offset in it.
  using Position = std::pair<uint64_t, uint64_t>;

  struct Message {
    uint64_t total = 0;
    uint64_t known = 0;  // bytes of the parts whose sizes are known
    Parts parts;
    std::vector<bool> has_size;
    std::map<Position, Position> taken;  // the pieces so far: from, to; neighbours are joined
    size_t arriving = 0;                 // pieces
  };

  Message& find_or_add(const wire::PieceHead& head);
  static void take_range(Message& message, Position from, Position to);

  const uint64_t max_message_;
  const uint64_t max_bytes_;  // of all unfinished messages
  std::mutex mutex_;
  std::map<uint64_t, Message> messages_;
  uint64_t bytes_ = 0;
  uint64_t parts_ = 0;
};

}  // namespace rpc_backends::zeromq
