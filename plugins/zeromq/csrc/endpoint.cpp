#include "endpoint.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <new>

#include "rpc_backends_agents/transport.h"

namespace rpc_backends::zeromq {

namespace {

// Backlog for accept(): all workers of a group may connect at once.
constexpr int kBacklog = 1024;
// Bytes that the buffer of a Unix socket takes: a message of 1 MiB is sent without the writer thread.
constexpr int kInUnixSocket = 1 << 20;

constexpr const char* kTcp = "tcp://";
constexpr const char* kIpc = "ipc://";

bool take_prefix(const std::string& text, const std::string& prefix, std::string& rest) {
  if (text.compare(0, prefix.size(), prefix) != 0) {
    return false;
  }
  rest = text.substr(prefix.size());
  return true;
}

constexpr int kSocket = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

// Owns a descriptor. Throws TransportError if it is -1, and std::bad_alloc; then it is closed.
std::unique_ptr<Fd> owned(int fd) {
  try {
    return std::make_unique<Fd>(fd);
  } catch (const std::bad_alloc&) {
    ::close(fd);
    throw;
  }
}

// Returns the size of the address, or 0 if the text is none.
socklen_t parse_address(const std::string& host, const std::string& port, bool is_ipv6, sockaddr_storage& address) {
  addrinfo hints{};
  hints.ai_family = is_ipv6 ? AF_INET6 : AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (getaddrinfo(host.c_str(), port.c_str(), &hints, &list) != 0) {
    return 0;
  }
  const socklen_t size = list->ai_addrlen;
  std::memcpy(&address, list->ai_addr, size);
  freeaddrinfo(list);
  return size;
}

std::string host_text(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST] = "";
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return host;
}

bool is_port(const std::string& text) {
  return !text.empty() && text.size() <= 5 && text.find_first_not_of("0123456789") == std::string::npos &&
         std::stoi(text) > 0 && std::stoi(text) <= 65535;
}

}  // namespace

Endpoint::Endpoint(const std::string& text) : text_(text) {
  std::string rest;
  // System calls would stop at a NUL and use only the text before it.
  if (text.find('\0') == std::string::npos) {
    if (take_prefix(text, kTcp, rest)) {
      parse_tcp(rest);
    } else if (take_prefix(text, kIpc, rest)) {
      parse_ipc(rest);
    }
  }
  if (size_ == 0) {
    // The error message would end at a NUL.
    throw TransportError("'" + text.substr(0, text.find('\0')) +
                         "' is not an endpoint to connect to; use tcp://ADDRESS:PORT with a numeric "
                         "address (IPv6 in brackets), or ipc://PATH");
  }
}

void Endpoint::parse_tcp(const std::string& rest) {
  const size_t colon = rest.rfind(':');
  if (colon == std::string::npos || !is_port(rest.substr(colon + 1))) {
    return;
  }
  std::string host = rest.substr(0, colon);
  const bool six = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (six) {
    host = host.substr(1, host.size() - 2);
  }
  in_addr four{};
  if (six ? host.find(':') == std::string::npos : inet_pton(AF_INET, host.c_str(), &four) != 1) {
    return;  // getaddrinfo() also accepts texts that are not addresses
  }
  size_ = parse_address(host, rest.substr(colon + 1), six, address_);
}

void Endpoint::parse_ipc(const std::string& rest) {
  sockaddr_un address{};
  if (rest.empty() || rest == "*" || rest.size() >= sizeof address.sun_path) {
    return;
  }
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, rest.data(), rest.size());
  size_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + rest.size() + 1);
  if (rest[0] == '@') {  // an abstract socket, which is in no folder
    address.sun_path[0] = '\0';
    size_ -= 1;
  }
  std::memcpy(&address_, &address, size_);
}

std::shared_ptr<Fd> Endpoint::probe(int& error) const {
  const int probe = ::socket(address_.ss_family, kSocket, 0);
  if (probe == -1) {
    error = errno;
    return nullptr;
  }
  const std::shared_ptr<Fd> fd = owned(probe);
  error = ::connect(probe, reinterpret_cast<const sockaddr*>(&address_), size_) == 0 ? 0 : errno;
  return error == EINPROGRESS ? fd : nullptr;
}

std::unique_ptr<Fd> Endpoint::open_socket(double longest_silence) const {
  auto socket = owned(::socket(address_.ss_family, kSocket, 0));
  tune(socket->get(), longest_silence);
  return socket;
}

std::unique_ptr<Fd> Endpoint::listen(const std::string& text, std::string& bound) {
  std::string rest;
  sockaddr_storage address{};
  socklen_t size = 0;
  const bool is_tcp = take_prefix(text, kTcp, rest);
  const size_t colon = rest.rfind(':');
  if (is_tcp && colon != std::string::npos && text.find('\0') == std::string::npos) {
    std::string host = rest.substr(0, colon);
    const std::string port = rest.substr(colon + 1);
    const bool six = host.size() > 2 && host.front() == '[' && host.back() == ']';
    if (port == "*" || is_port(port)) {
      size = parse_address(six ? host.substr(1, host.size() - 2) : host, port == "*" ? "0" : port, six, address);
    }
  } else if (!is_tcp && take_prefix(text, kIpc, rest)) {
    const Endpoint endpoint(text);
    address = endpoint.address_;
    size = endpoint.size_;
  }
  if (size == 0) {
    throw BindError(EINVAL, text);
  }
  const int family = address.ss_family;
  auto socket = owned(::socket(family, kSocket, 0));
  const int yes = 1;
  if (is_tcp) {
    ::setsockopt(socket->get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  }
  if (family == AF_INET6) {
    ::setsockopt(socket->get(), IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes);
  }
  if (::bind(socket->get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      ::listen(socket->get(), kBacklog) != 0) {
    throw BindError(errno, text);
  }
  bound = text;
  if (is_tcp) {
    sockaddr_storage actual{};
    size = sizeof actual;
    ::getsockname(socket->get(), reinterpret_cast<sockaddr*>(&actual), &size);
    const std::string host = host_text(actual, size);
    const in_port_t port = family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&actual)->sin6_port
                                              : reinterpret_cast<const sockaddr_in*>(&actual)->sin_port;
    bound = kTcp + (family == AF_INET6 ? "[" + host + "]" : host) + ":" + std::to_string(ntohs(port));
  }
  return socket;
}

bool is_unix_socket(int fd) {
  int family = 0;
  socklen_t size = sizeof family;
  return ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size) == 0 && family == AF_UNIX;
}

void tune(int fd, double longest_silence) {
  const int yes = 1;
  if (is_unix_socket(fd)) {
    // If the system allows less, it uses its own limit.
    ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kInUnixSocket, sizeof kInUnixSocket);
  } else {
    const auto silence = static_cast<unsigned>(std::lround(longest_silence * 1000));
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence, sizeof silence);
  }
}

double round_trip(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 ? info.tcpi_rtt / 1e6 : 0;
}

std::string other_user(int fd) {
  ucred owner{};
  socklen_t size = sizeof owner;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &owner, &size) != 0) {
    return std::strerror(errno);
  }
  return owner.uid == ::geteuid() ? ""
                                  : "process " + std::to_string(owner.pid) + " of user " + std::to_string(owner.uid) +
                                        ", but this is user " + std::to_string(::geteuid());
}

std::string peer_address(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  return ::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0 ? host_text(address, size) : "";
}

BindError::BindError(int error, const std::string& where)
    : TransportError("cannot listen on " + where + ": " + std::strerror(error)), number(error), endpoint(where) {}

}  // namespace rpc_backends::zeromq
