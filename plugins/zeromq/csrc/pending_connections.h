// The connections that have come in and are not authenticated yet: how many there may be, and what becomes
// of those for which there is no room.
//
// libzmq accepts whatever comes, keeps it until the handshake is too old, and where the process has no
// descriptor left it tries again at once, for ever. So beyond a limit the oldest connections are ended,
// since who is authenticated is so within moments; and where there is none to end, what waits to be accepted is
// accepted and closed.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "fd.h"
#include "inbox.h"

namespace rpc_backends::zeromq {

// Of the event loop's thread, but authenticated(). A `fd` is libzmq's, which closes it when it likes.
class PendingConnections {
 public:
  // Descriptors that pending_connections leave to the process.
  static constexpr int kSpare = 32;

  // Throws TransportError.
  PendingConnections();

  // Libzmq listens at `fd`.
  void listening(int fd);

  // Returns how many connections were ended to make room for this one. `most`: how many there may be.
  size_t accepted(int fd, size_t most);

  void disconnected(int fd);

  // A message has come by `fd` from somebody who may send it. From any thread.
  void authenticated(int fd);

  // There was no descriptor for a connection. Returns how many were ended to make room.
  size_t accept_failed();

 private:
  struct Pending {
    int fd;
    ino_t number;
  };
  struct Listener {
    std::unique_ptr<Fd> fd;
    sockaddr_storage address;
  };
  using Newest = std::list<Pending>;

  bool is_ours(int fd) const;
  void take_authenticated();
  size_t allowed(int newest, size_t most) const;
  size_t keep(size_t number);
  size_t turn_away();
  void take_spare();
  void end(const Pending& pending);
  void erase(int fd);

  Fd placeholder_;
  // Always open: a place for a descriptor where the process may open no more.
  Fd place_;
  // Given up for a moment to accept with. Somebody may be quicker to take it, libzmq for one.
  std::unique_ptr<Fd> spare_;
  std::vector<Listener> listeners_;
  Newest pending_connections_;  // the newest last
  std::unordered_map<int, Newest::iterator> by_fd_;
  Clock::time_point last_failure_;

  std::mutex mutex_;
  std::unordered_set<int> authenticated_;
};

}  // namespace rpc_backends::zeromq
