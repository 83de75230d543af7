// Owners of file descriptors, which close them on destruction.
#pragma once

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "rpc_backends_agents/transport.h"

namespace rpc_backends {

class Fd {
 public:
  // Throws TransportError with errno's text if `fd` is -1.
  explicit Fd(int fd) : fd_(fd) {
    if (fd == -1) {
      throw TransportError(std::string("the transport cannot open a file: ") + std::strerror(errno));
    }
  }
  ~Fd() { ::close(fd_); }

  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;

  int get() const { return fd_; }

 private:
  int fd_;
};

// An eventfd that wakes a thread waiting in an epoll set.
class Signal {
 public:
  Signal() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  void set() {
    const uint64_t count = 1;
    [[maybe_unused]] const ssize_t written = ::write(fd_.get(), &count, sizeof count);
  }

  void clear() {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t taken = ::read(fd_.get(), &count, sizeof count);
  }

  int fd() const { return fd_.get(); }

 private:
  Fd fd_;
};

class Epoll {
 public:
  Epoll() : fd_(epoll_create1(EPOLL_CLOEXEC)) {}

  void add(int fd, uint32_t events, uint64_t id) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    if (epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      throw TransportError(std::string("the transport cannot wait for a file: ") + std::strerror(errno));
    }
  }

  // Re-enables a descriptor that was added with EPOLLONESHOT.
  void rearm(int fd, uint32_t events, uint64_t id) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    epoll_ctl(fd_.get(), EPOLL_CTL_MOD, fd, &event);
  }

  void remove(int fd) { epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, nullptr); }

  // Returns the id of a ready descriptor, or 0. A timeout of -1 waits for ever.
  uint64_t wait(int milliseconds) {
    epoll_event event{};
    return epoll_wait(fd_.get(), &event, 1, milliseconds) == 1 ? event.data.u64 : 0;
  }

 private:
  Fd fd_;
};

}  // namespace rpc_backends
