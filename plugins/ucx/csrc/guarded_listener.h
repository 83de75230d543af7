// A TCP listener that hands out only connections whose first bytes prove the sender.
//
// Connections without a proof wait here, at most for a time and at most a number of them. Nothing blocks.
#pragma once

#include <sys/socket.h>

#include <array>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "connection_proof.h"
#include "rpc_backends_agents/fd.h"
#include "settings.h"

namespace rpc_backends::ucx {

// Not thread-safe: callers need a lock.
class GuardedListener {
 public:
  // Returns the answer to a proof of a connection to `receiver`; nullopt if the proof is not valid.
  using Check =
      std::function<std::optional<ConnectionKey::Tag>(const ConnectionKey::Proof&, const std::string& receiver)>;
  // Called when a connection is closed because it has not proved itself. `from`: its address.
  using OnRefused = std::function<void(const std::string& from)>;

  // `listener`: a non-blocking socket that listens. Throws TransportError.
  GuardedListener(int listener, std::chrono::milliseconds time_limit, Check check, OnRefused on_refused);

  // Ready for reading when accept() has something to do.
  int fd() const { return epoll_.get(); }

  // Returns a connection that has proved itself; -1 if there is none now. The caller owns it.
  int accept();

 private:
  struct Pending {
    explicit Pending(int socket) : fd(socket) {}
    ~Pending() {
      if (fd != -1) {
        ::close(fd);
      }
    }
    Pending(const Pending&) = delete;
    Pending& operator=(const Pending&) = delete;

    int fd;
    Clock::time_point deadline;
    std::string from;
    std::array<char, sizeof(ConnectionKey::Proof)> bytes{};
    size_t size = 0;
  };
  using Oldest = std::list<Pending>;
  enum class Outcome { kWaits, kClosed, kRefused, kProved };

  void add();
  Outcome read(Pending& pending);
  void erase(Oldest::iterator pending);
  void refuse(Oldest::iterator pending);
  // Closes the oldest connections until at most `number` remain.
  void keep(size_t number);
  void make_room();
  void run_timer();
  void set_timer();
  void watch_listener(bool is_watched);

  const Fd listener_;
  const Fd epoll_;
  const Fd timer_;
  const std::chrono::milliseconds time_limit_;
  const Check check_;
  const OnRefused on_refused_;
  std::unique_ptr<Fd> spare_;                // closed for a moment so that accept() gets a descriptor
  std::optional<Clock::time_point> resume_;  // when to watch the listener again
  Oldest pending_;
  std::unordered_map<int, Oldest::iterator> by_fd_;
};

}  // namespace rpc_backends::ucx
