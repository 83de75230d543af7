// Limits the incoming connections that are not authenticated yet.
//
// libzmq accepts every connection and keeps it until its handshake times out. If the process has no descriptor
// left, libzmq retries accept() in a busy loop. Beyond a limit this class therefore ends the oldest connections,
// because an honest peer authenticates within moments. If there is none to end, it accepts and closes waiting
// connections.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "inbox.h"
#include "rpc_backends_agents/fd.h"

namespace rpc_backends::zeromq {

// Used only on the event loop's thread, except authenticated(). Each `fd` belongs to libzmq, which may close it at
// any time.
class PendingConnections {
 public:
  // Descriptors that pending connections leave to the process.
  static constexpr int kSpare = 32;

  // Throws TransportError.
  PendingConnections();

  // libzmq listens on `fd`.
  void listening(int fd);

  // Returns how many connections were ended to make room for this one. `most`: the limit.
  size_t accepted(int fd, size_t most);

  void disconnected(int fd);

  // An authenticated message has arrived on `fd`. Thread-safe.
  void authenticated(int fd);

  // accept() failed for lack of a descriptor. Returns how many connections were ended to make room.
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
  // Always open: dup3() onto it needs no free descriptor.
  Fd place_;
  // Closed for a moment so that accept() gets a descriptor. Another thread, for example libzmq's, may take it
  // first.
  std::unique_ptr<Fd> spare_;
  std::vector<Listener> listeners_;
  Newest pending_connections_;  // the newest last
  std::unordered_map<int, Newest::iterator> by_fd_;
  Clock::time_point last_failure_;

  std::mutex mutex_;
  std::unordered_set<int> authenticated_;
};

}  // namespace rpc_backends::zeromq
