// Keeps processes that have not proved that they belong to the group away from UCX's TCP transport.
//
// UCX parses what arrives on its TCP port, and trusts it: a few bytes end the process. UCX opens, accepts and connects
// its sockets with a few functions of its library libucs, which its library libuct imports. The guard replaces these
// imports. UCX then watches the guard's descriptor in place of its listener, and gets only connections that have proved
// themselves (GuardedListener). On a connection that UCX opens, the guard sends the proof first, and UCX reads nothing
// until the other end has answered it.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>

#include "connection_proof.h"
#include "guarded_listener.h"
#include "identity.h"

namespace rpc_backends::ucx {

// One for each of UCX's workers; destroyed after it. Thread-safe.
class TcpGuard final : GuardedListener::Judge {
 public:
  // Whether UCX's functions were replaced. If not, no guard has an effect.
  static bool is_in_force();

  // Called with a line to log when a process was refused, on a thread of UCX. It must not block.
  using OnRefused = std::function<void(const std::string& line)>;

  // `identity`: of this worker; null if workers have no certificates.
  TcpGuard(std::chrono::milliseconds time_limit, const Identity* identity, OnRefused on_refused);
  ~TcpGuard() override;
  TcpGuard(const TcpGuard&) = delete;
  TcpGuard& operator=(const TcpGuard&) = delete;

  // Until this is called, no connection is accepted, and connections are opened without a proof.
  void set_key(const ConnectionKey::Bytes& bytes);

  // How many of UCX's listeners are guarded.
  int listeners() const { return listeners_; }

  // While this object exists, the sockets that UCX opens on this thread belong to the guard. Null: no effect, at no
  // cost.
  class Scope {
   public:
    explicit Scope(TcpGuard* guard) : guard_(guard), before_(guard == nullptr ? nullptr : enter(guard)) {}
    ~Scope() {
      if (guard_ != nullptr) {
        enter(before_);
      }
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    // Returns the guard that was there before.
    static TcpGuard* enter(TcpGuard* guard);

    TcpGuard* const guard_;
    TcpGuard* const before_;
  };

  // For the functions that replace UCX's.
  std::unique_ptr<GuardedListener> guard(int listener);
  struct Promise {
    ConnectionKey::Proof proof;
    ConnectionKey::Tag answer;
    std::string bytes;     // what to send: the proof, and that of the identity
    std::string receiver;  // its address
  };
  // The proof for a new connection to a receiver, and the expected answer; nullopt if there is no key yet.
  std::optional<Promise> promise(const std::string& receiver);
  bool wants_identity() const override { return identity_ != nullptr; }
  // Returns whose certificate is in the answer to a promise; nullopt if it is refused.
  std::optional<Subject> check_answer(const Promise& promise, const std::string& identity);

  // Ends the connections whose certificates are revoked.
  void end_revoked();

 private:
  bool is_valid(const ConnectionKey::Proof& proof, const std::string& receiver) override;
  std::string answer(const ConnectionKey::Proof& proof, const std::string& identity, const std::string& receiver,
                     std::optional<Subject>& subject) override;

  const Identity* const identity_;
  const std::chrono::milliseconds time_limit_;
  const OnRefused on_refused_;
  std::atomic<int> listeners_{0};
  std::mutex mutex_;
  std::optional<ConnectionKey> key_;
  uint64_t connector_;
  uint64_t number_ = 0;
  UsedProofs used_;
};

}  // namespace rpc_backends::ucx
