#include "pending_connections.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace rpc_backends::zeromq {

namespace {

// Kept even if few descriptors are left, so that peers can finish their handshakes.
constexpr size_t kFewest = 8;

// How long libzmq may take to close ended connections.
constexpr std::chrono::milliseconds kPause{20};

// Per listener, in one go.
constexpr int kMaxTurnedAway = 2000;

int copy_of_fd(int fd) {
  return ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

// All zero if there is no address.
sockaddr_storage address_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return {};
  }
  return address;
}

template <typename Address>
Address as(const sockaddr_storage& storage) {
  Address address;
  std::memcpy(&address, &storage, sizeof address);
  return address;
}

// Whether a connection with local address `address` can come from a listener on `listener`.
bool comes_by(const sockaddr_storage& listener, const sockaddr_storage& address) {
  if (listener.ss_family != address.ss_family) {
    return false;
  }
  if (address.ss_family == AF_INET) {
    const auto there = as<sockaddr_in>(listener), here = as<sockaddr_in>(address);
    return there.sin_port == here.sin_port &&
           (there.sin_addr.s_addr == INADDR_ANY || there.sin_addr.s_addr == here.sin_addr.s_addr);
  }
  if (address.ss_family == AF_INET6) {
    const auto there = as<sockaddr_in6>(listener), here = as<sockaddr_in6>(address);
    return there.sin6_port == here.sin6_port &&
           (IN6_IS_ADDR_UNSPECIFIED(&there.sin6_addr) || IN6_ARE_ADDR_EQUAL(&there.sin6_addr, &here.sin6_addr));
  }
  return std::memcmp(&listener, &address, sizeof(sockaddr_un)) == 0;
}

}  // namespace

PendingConnections::PendingConnections()
    : placeholder_(eventfd(0, EFD_CLOEXEC)), place_(copy_of_fd(placeholder_.get())) {
  take_spare();
}

void PendingConnections::listening(int fd) {
  const int copy = copy_of_fd(fd);
  if (copy == -1) {
    return;  // nothing can be accepted and closed then, and libzmq keeps retrying
  }
  auto listener = std::make_unique<Fd>(copy);
  // libzmq and this class both accept: the slower one must not block.
  ::fcntl(listener->get(), F_SETFL, ::fcntl(listener->get(), F_GETFL) | O_NONBLOCK);
  const sockaddr_storage address = address_of(listener->get());
  listeners_.push_back({std::move(listener), address});
}

void PendingConnections::authenticated(int fd) {
  std::lock_guard<std::mutex> lock(mutex_);
  authenticated_.insert(fd);
}

size_t PendingConnections::accepted(int fd, size_t most) {
  erase(fd);
  struct stat found{};
  if (::fstat(fd, &found) != 0 || !is_ours(fd)) {
    return 0;  // it has ended since, and the number may belong to another file
  }
  by_fd_[fd] = pending_connections_.insert(pending_connections_.end(), {fd, found.st_ino});
  if (pending_connections_.size() <= allowed(fd, most)) {
    return 0;
  }
  take_authenticated();
  return keep(allowed(fd, most));
}

bool PendingConnections::is_ours(int fd) const {
  const sockaddr_storage address = address_of(fd);
  return std::any_of(listeners_.begin(), listeners_.end(),
                     [&](const Listener& listener) { return comes_by(listener.address, address); });
}

void PendingConnections::disconnected(int fd) {
  erase(fd);
  std::lock_guard<std::mutex> lock(mutex_);
  authenticated_.erase(fd);
}

size_t PendingConnections::accept_failed() {
  take_authenticated();
  take_spare();
  if (pending_connections_.empty()) {
    return turn_away();
  }
  const auto now = Clock::now();
  if (now - last_failure_ < kPause) {
    return 0;
  }
  last_failure_ = now;
  return keep(pending_connections_.size() / 2);
}

void PendingConnections::take_authenticated() {
  std::lock_guard<std::mutex> lock(mutex_);
  // A connection that is not in the list has not been reported as accepted yet.
  std::erase_if(authenticated_, [this](int fd) {
    const bool known = by_fd_.count(fd) != 0;
    erase(fd);
    return known;
  });
}

// The system assigns the lowest free number, so all numbers below the newest are in use.
size_t PendingConnections::allowed(int newest, size_t most) const {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return most;
  }
  const int64_t others = newest + 1 - static_cast<int64_t>(pending_connections_.size());
  const int64_t room = static_cast<int64_t>(limit.rlim_cur) - kSpare - others;
  return std::min(most, static_cast<size_t>(std::max<int64_t>(room, kFewest)));
}

// Ends the oldest connections until at most `number` remain.
size_t PendingConnections::keep(size_t number) {
  size_t ended = 0;
  while (pending_connections_.size() > number) {
    end(pending_connections_.front());
    erase(pending_connections_.front().fd);
    ++ended;
  }
  return ended;
}

// Accepts and closes the connections that wait to be accepted.
size_t PendingConnections::turn_away() {
  size_t ended = 0;
  spare_.reset();
  for (const Listener& listener : listeners_) {
    for (int i = 0; i < kMaxTurnedAway; ++i) {
      const int fd = ::accept4(listener.fd->get(), nullptr, nullptr, SOCK_CLOEXEC);
      if (fd == -1) {
        break;
      }
      ::close(fd);
      ++ended;
    }
  }
  take_spare();
  return ended;
}

void PendingConnections::take_spare() {
  if (spare_ != nullptr) {
    return;
  }
  const int fd = copy_of_fd(placeholder_.get());
  if (fd != -1) {
    spare_ = std::make_unique<Fd>(fd);
  }
}

// Works on a duplicate descriptor: libzmq may have closed its own, and the number may belong to another file by
// now.
void PendingConnections::end(const Pending& pending) {
  struct stat found{};
  if (::dup3(pending.fd, place_.get(), O_CLOEXEC) == -1) {
    return;
  }
  if (::fstat(place_.get(), &found) == 0 && found.st_ino == pending.number && S_ISSOCK(found.st_mode)) {
    ::shutdown(place_.get(), SHUT_RDWR);
  }
  ::dup3(placeholder_.get(), place_.get(), O_CLOEXEC);
}

void PendingConnections::erase(int fd) {
  const auto found = by_fd_.find(fd);
  if (found != by_fd_.end()) {
    pending_connections_.erase(found->second);
    by_fd_.erase(found);
  }
}

}  // namespace rpc_backends::zeromq
