// A message that is being sent: its header, its small parts, and the owners of its large ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "rpc_backends_agents/transport.h"
#include "wire.h"

namespace rpc_backends::ucx {

class Outbox;
class Outgoing;

// A list, because a message moves from one to another without memory.
using Messages = std::list<std::unique_ptr<Outgoing>>;

class Outgoing {
 public:
  // An active message.
  struct Piece {
    wire::Kind kind = wire::Kind::kMessage;
    const void* header = nullptr;
    size_t header_size = 0;
    const void* data = nullptr;
    size_t size = 0;
    Memory memory{};  // where the data is
  };

  // Copies the small parts in host memory. `max_header`: bytes of the longest header of an active message. Throws
  // TransportError and std::bad_alloc.
  Outgoing(Parts parts, size_t max_header);

  // Returns the active messages that send this as message `number` of the link with this token.
  std::vector<Piece> pieces(wire::Token token, uint64_t number);

  // Of all parts together.
  uint64_t bytes() const { return bytes_; }
  bool is_large() const { return bytes_ >= wire::kLargeMessage; }

  Outbox* outbox = nullptr;
  Messages::iterator place;  // in the outbox
  int peer = -1;
  uint64_t number = 0;  // on the link to the peer
  // The number of active messages that UCX has not completed. Use it with the transport's lock.
  size_t pending = 0;
  bool has_failed = false;
  // The small parts are copied, but stay here with their owners: the agent takes a message as sent when an owner is
  // released.
  Parts parts;

 private:
  std::unique_ptr<char[]> head_;  // the header, then sizes and small parts
  size_t head_size_ = 0;
  bool in_header_ = false;
  uint64_t bytes_ = 0;
  std::vector<size_t> large_;  // the large parts; those on devices, too
  std::vector<wire::DevicePart> part_heads_;
};

}  // namespace rpc_backends::ucx
