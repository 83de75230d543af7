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
  // rejected, because resolving them may take long. Throws TransportError.
  explicit Endpoint(const std::string& text);

  const std::string& text() const { return text_; }
  bool is_unix() const { return address_.ss_family == AF_UNIX; }

  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&address_); }
  socklen_t address_size() const { return size_; }

  // Creates a socket to connect to it, which does not block. Throws TransportError.
  std::unique_ptr<Fd> open_socket(double longest_silence) const;

  // Tries to connect, without blocking. Sets `error` to 0 if a process listens there, to EINPROGRESS if that is not
  // known yet, and otherwise to the errno. With EINPROGRESS it returns the socket, which becomes writable when the
  // result is known.
  std::shared_ptr<Fd> probe(int& error) const;

  // Creates a socket that listens on "tcp://ADDRESS:PORT" or "ipc://PATH", and sets `bound` to the endpoint with the
  // port that the system has chosen if the port is "*". Throws BindError.
  static std::unique_ptr<Fd> listen(const std::string& text, std::string& bound);

  friend bool operator==(const Endpoint& a, const Endpoint& b) { return a.text_ == b.text_; }

 private:
  void parse_tcp(const std::string& rest);
  void parse_ipc(const std::string& rest);

  std::string text_;
  sockaddr_storage address_{};
  socklen_t size_ = 0;
};

bool is_unix_socket(int fd);

// Sets the options of a socket that messages use. The system ends a TCP connection on which sent data are not
// acknowledged for `longest_silence`, in seconds: then no heartbeat can be sent either.
void tune(int fd, double longest_silence);

// The round trip time of a TCP connection in seconds; 0 if it is not known.
double round_trip(int fd);

// Describes the process at the other end of a Unix socket if it belongs to another user; "" if it belongs to this user.
std::string other_user(int fd);

// The numeric address of the process at the other end of a TCP connection.
std::string peer_address(int fd);

// Listening failed, with the endpoint and the errno.
class BindError : public TransportError {
 public:
  BindError(int error, const std::string& where);

  const int number;
  const std::string endpoint;
};

}  // namespace rpc_backends::zeromq
