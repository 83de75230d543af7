// Connected sockets for the unit tests and the fuzzers.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "rpc_backends_agents/fd.h"

namespace rpc_backends::zeromq {

inline std::pair<std::unique_ptr<Fd>, std::unique_ptr<Fd>> socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
    throw std::system_error(errno, std::generic_category(), "socketpair");
  }
  return {std::make_unique<Fd>(ends[0]), std::make_unique<Fd>(ends[1])};
}

// What has arrived at a socket that does not block.
inline std::string received(int fd) {
  std::string all;
  char buffer[65536];
  for (ssize_t got = 0; (got = ::recv(fd, buffer, sizeof buffer, 0)) > 0;) {
    all.append(buffer, static_cast<size_t>(got));
  }
  return all;
}

}  // namespace rpc_backends::zeromq
