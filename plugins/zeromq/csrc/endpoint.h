// A validated endpoint of a peer, and a probe of whether a process listens there.
#pragma once

#include <sys/socket.h>

#include <memory>
#include <string>

#include "rpc_backends_agents/fd.h"

namespace rpc_backends::zeromq {

class Endpoint {
 public:
  Endpoint() = default;

  // `text`: "tcp://ADDRESS:PORT", with a numeric address and IPv6 in brackets, or "ipc://PATH". Host names are
  // rejected, because libzmq would resolve them on its I/O thread. Throws TransportError.
  explicit Endpoint(const std::string& text);

  const std::string& text() const { return text_; }
  bool is_unix() const { return address_.ss_family == AF_UNIX; }
  bool is_ipv6() const { return address_.ss_family == AF_INET6; }

  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&address_); }
  socklen_t address_size() const { return size_; }

  // Tries to connect, without blocking. Sets `error` to 0 if a process listens there, to EINPROGRESS if that is not
  // known yet, and otherwise to the errno. With EINPROGRESS it returns the socket, which becomes writable when the
  // result is known.
  std::shared_ptr<Fd> probe(int& error) const;

  friend bool operator==(const Endpoint& a, const Endpoint& b) { return a.text_ == b.text_; }

 private:
  void parse_tcp(const std::string& rest);
  void parse_ipc(const std::string& rest);

  std::string text_;
  sockaddr_storage address_{};
  socklen_t size_ = 0;
};

}  // namespace rpc_backends::zeromq
