// The name of a connection, by which replies find back: its routing id in ZeroMQ's words.
//
// No two connections have the same, also of workers that have started again, and among those of one worker
// the newest can be told. Nobody can guess one, so nobody can be there first and keep its owner out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace rpc_backends::zeromq {

struct Route {
  int worker = -1;
  uint64_t time = 0;  // nanoseconds since 1970, later than of any before in this process

  // Makes the route of a new connection of `worker`.
  static Route make(int worker);

  // Reads what somebody calls their connection; none if it is no such name.
  static std::optional<Route> parse(const void* data, size_t size);

  // As libzmq gets it.
  std::string text;
};

}  // namespace rpc_backends::zeromq
