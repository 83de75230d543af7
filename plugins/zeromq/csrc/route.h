// The name of a connection, which routes replies: its ZeroMQ routing id.
//
// Names are unique, also across restarts of a worker. They also order the connections of a worker by age. Names
// cannot be guessed, so no other process can claim a name before its owner does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace rpc_backends::zeromq {

struct Route {
  int worker = -1;
  uint64_t time = 0;  // nanoseconds since 1970; later than all earlier ones of this process

  // Makes the route of a new connection of `worker`.
  static Route make(int worker);

  // Parses the routing id of a peer; none if it is malformed.
  static std::optional<Route> parse(const void* data, size_t size);

  // The form in which libzmq gets it.
  std::string text;
};

}  // namespace rpc_backends::zeromq
