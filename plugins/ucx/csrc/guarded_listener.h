// A TCP listener that hands out only connections whose first bytes prove the sender.
//
// Connections without a proof wait here, at most for a time and at most a number of them. Nothing blocks.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>

#include "connection_proof.h"
#include "identity.h"
#include "rpc_backends_agents/fd.h"
#include "settings.h"

namespace rpc_backends::ucx {

// Not thread-safe: callers need a lock.
class GuardedListener {
 public:
  // Decides on connections to the address `receiver`.
  class Judge {
   public:
    virtual ~Judge() = default;
    // Whether the first proof is right, which takes no time to tell.
    virtual bool is_valid(const ConnectionKey::Proof& proof, const std::string& receiver) = 0;
    // Whether a proof of an identity must follow.
    virtual bool wants_identity() const = 0;
    // Returns the answer; `subject` becomes whose certificate it is. Throws TransportError with the reason against the
    // connection.
    virtual std::string answer(const ConnectionKey::Proof& proof, const std::string& identity,
                               const std::string& receiver, std::optional<Subject>& subject) = 0;
  };
  // Called when a connection is closed because it has not proved itself. `from`: its address.
  using OnRefused = std::function<void(const std::string& from, const std::string& why)>;

  // `listener`: a non-blocking socket that listens. Throws TransportError.
  GuardedListener(int listener, std::chrono::milliseconds time_limit, Judge& judge, OnRefused on_refused);

  // Ready for reading when accept() has something to do.
  int fd() const { return epoll_.get(); }

  struct Accepted {
    int fd = -1;
    std::optional<Subject> subject;  // if it has a certificate
  };
  // Returns a connection that has proved itself; -1 if there is none now. The caller owns it.
  Accepted accept();

 private:
  static constexpr auto kNoProof = "without the proof that it belongs to this group";

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
    std::string receiver;  // the address to which it is
    std::string bytes;     // received so far
    size_t wanted = sizeof(ConnectionKey::Proof);
    std::optional<Subject> subject;
    std::string answer;  // not yet sent
    std::string why = kNoProof;
  };
  using Oldest = std::list<Pending>;
  enum class Outcome { kWaits, kClosed, kRefused, kProved };

  void add();
  Outcome read(Pending& pending);
  // Looks at what has come; kWaits: more is needed, and `wanted` says how much.
  Outcome judge(Pending& pending);
  Outcome send_answer(Pending& pending);
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
  Judge& judge_;
  const OnRefused on_refused_;
  std::optional<Fd> spare_;                  // closed for a moment so that accept() gets a descriptor
  std::optional<Clock::time_point> resume_;  // when to watch the listener again
  Oldest pending_;
  std::unordered_map<int, Oldest::iterator> by_fd_;
};

}  // namespace rpc_backends::ucx
