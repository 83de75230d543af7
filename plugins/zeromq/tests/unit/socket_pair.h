// Connected sockets for the unit tests and the fuzzers.
#pragma once

#include <fcntl.h>
#include <netinet/in.h>
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

// The same over TCP, through the loopback interface.
inline std::pair<std::unique_ptr<Fd>, std::unique_ptr<Fd>> tcp_pair() {
  const auto check = [](int result, const char* what) {
    if (result < 0) {
      throw std::system_error(errno, std::generic_category(), what);
    }
    return result;
  };
  const auto made = [&check] {
    return std::make_unique<Fd>(check(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket"));
  };
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof address;
  const auto listener = made();
  check(::bind(listener->get(), generic, size), "bind");
  check(::listen(listener->get(), 1), "listen");
  check(::getsockname(listener->get(), generic, &size), "getsockname");
  auto caller = made();
  check(::connect(caller->get(), generic, size), "connect");
  auto called = std::make_unique<Fd>(check(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC), "accept4"));
  for (const auto& end : {caller->get(), called->get()}) {
    check(::fcntl(end, F_SETFL, O_NONBLOCK), "fcntl");
  }
  return {std::move(caller), std::move(called)};
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
