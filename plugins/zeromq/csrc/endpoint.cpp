#include "endpoint.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "rpc_backends_agents/transport.h"

namespace rpc_backends::zeromq {

namespace {

constexpr const char* kTcp = "tcp://";
constexpr const char* kIpc = "ipc://";

bool take_prefix(const std::string& text, const std::string& prefix, std::string& rest) {
  if (text.compare(0, prefix.size(), prefix) != 0) {
    return false;
  }
  rest = text.substr(prefix.size());
  return true;
}

bool is_port(const std::string& text) {
  return !text.empty() && text.size() <= 5 && text.find_first_not_of("0123456789") == std::string::npos &&
         std::stoi(text) > 0 && std::stoi(text) <= 65535;
}

}  // namespace

Endpoint::Endpoint(const std::string& text) : text_(text) {
  std::string rest;
  // libzmq would stop at a NUL and use only the text before it.
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
  addrinfo hints{};
  hints.ai_family = six ? AF_INET6 : AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), rest.c_str() + colon + 1, &hints, &found) == 0) {
    size_ = found->ai_addrlen;
    std::memcpy(&address_, found->ai_addr, size_);
    freeaddrinfo(found);
  }
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
  const int probe = ::socket(address_.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (probe == -1) {
    error = errno;
    return nullptr;
  }
  const auto fd = std::make_shared<Fd>(probe);
  error = ::connect(probe, reinterpret_cast<const sockaddr*>(&address_), size_) == 0 ? 0 : errno;
  return error == EINPROGRESS ? fd : nullptr;
}

}  // namespace rpc_backends::zeromq
