// A message, or a piece of one, on its way into a socket.
#pragma once

#include <cstring>
#include <vector>

#include "rpc_backends_agents/transport.h"
#include "wire.h"

namespace rpc_backends::zeromq {

struct Outgoing {
  std::vector<char> head;  // everything that comes before the bytes of the parts
  Parts parts;
  size_t at = 0;      // 0 is the head; the parts follow
  size_t offset = 0;  // within the head or part
};

// Returns a header, with room for `more` bytes.
inline std::vector<char> head_of(wire::Kind kind, size_t count, size_t more) {
  wire::Header header;
  header.kind = static_cast<uint8_t>(kind);
  header.count = static_cast<uint32_t>(count);
  std::vector<char> head(sizeof header + more);
  std::memcpy(head.data(), &header, sizeof header);
  return head;
}

}  // namespace rpc_backends::zeromq
