// Messages over blocking stream sockets, for engines that have a thread for each connection.
#pragma once

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "rpc_backends_agents/blocks.h"
#include "rpc_backends_agents/transport.h"

namespace rpc_backends::stream {

// The text of the error if the peer ends a connection.
inline constexpr const char* kClosed = "the worker has closed the connection";

[[noreturn]] inline void fail(const std::string& what) {
  throw TransportError(what + ": " + std::strerror(errno));
}

// The address of a socket.
struct Address {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// Throws TransportError if `host` is not an IP address.
inline Address address_of(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* parsed = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &parsed) != 0) {
    throw TransportError("'" + host + "' is not an IP address");
  }
  Address address;
  std::memcpy(address.get(), parsed->ai_addr, parsed->ai_addrlen);
  address.size = parsed->ai_addrlen;
  ::freeaddrinfo(parsed);
  return address;
}

// Returns a socket for connections from or to this address, or -1.
inline int open_socket(const Address& address) {
  return ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

// Makes a socket listen on a port that the system chooses, and returns the port.
inline int listen_on(int fd, const std::string& host) {
  Address address = address_of(host, 0);
  if (::bind(fd, address.get(), address.size) != 0 || ::listen(fd, SOMAXCONN) != 0 ||
      ::getsockname(fd, address.get(), &address.size) != 0) {
    fail("the worker cannot listen on " + host);
  }
  return ntohs(address.storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(address.get())->sin6_port
                                                     : reinterpret_cast<sockaddr_in*>(address.get())->sin_port);
}

// Connects, and waits until that has succeeded or failed.
inline void connect_to(int fd, const Address& address) {
  if (::connect(fd, address.get(), address.size) != 0) {
    fail("the worker cannot be reached");
  }
}

// Throws TransportError if a peer does not send within this time; 0 waits without limit.
inline void limit_reads(int fd, int seconds) {
  const timeval limit{seconds, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

inline void send_without_delay(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

inline void send_all(int fd, const void* data, size_t size, bool more = false) {
  for (size_t done = 0; done < size;) {
    const ssize_t sent =
        ::send(fd, static_cast<const char*>(data) + done, size - done, MSG_NOSIGNAL | (more ? MSG_MORE : 0));
    if (sent < 0 && errno != EINTR) {
      fail("the message cannot be sent");
    }
    done += std::max<ssize_t>(sent, 0);
  }
}

inline void receive_all(int fd, void* data, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t received = ::recv(fd, static_cast<char*>(data) + done, size - done, 0);
    if (received == 0) {
      throw TransportError(kClosed);
    }
    if (received < 0 && errno != EINTR) {
      fail("the connection to the worker is lost");
    }
    done += std::max<ssize_t>(received, 0);
  }
}

// On the wire a message is the number of its parts, their sizes, and the parts; numbers have 8 bytes.
inline void send_message(int fd, const Parts& parts) {
  std::vector<uint64_t> head{parts.size()};
  for (const Part& part : parts) {
    head.push_back(part.size);
  }
  send_all(fd, head.data(), head.size() * sizeof(uint64_t), !parts.empty());
  for (const Part& part : parts) {
    send_all(fd, part.data, part.size, &part != &parts.back());
  }
}

// Throws TransportError if the connection ends, or if the parts have more than `most` bytes together.
inline Parts receive_message(int fd, uint64_t most) {
  constexpr uint64_t most_parts = 1 << 21;  // the agent allows 2^20 tensors in a message
  uint64_t count = 0;
  receive_all(fd, &count, sizeof count);
  if (count > most_parts) {
    throw TransportError("the worker has announced a message of " + std::to_string(count) + " parts");
  }
  std::vector<uint64_t> sizes(count);
  receive_all(fd, sizes.data(), count * sizeof(uint64_t));
  Parts parts;
  for (const uint64_t size : sizes) {
    if (size > most) {
      throw TransportError("the worker has announced a message that is too large");
    }
    most -= size;
    parts.push_back(take_block(size));  // no memory is used before bytes arrive
    receive_all(fd, const_cast<void*>(parts.back().data), size);
  }
  return parts;
}

}  // namespace rpc_backends::stream
