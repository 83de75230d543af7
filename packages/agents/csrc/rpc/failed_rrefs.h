// RRefs that rpc.remote() could not create. torch keeps each of them for the life of the process, unless the call has
// timed out: it removes an RRef from those that wait for their owner when the owner has answered, and the callback that
// should do so after an error throws first. These small objects lie between large tensors in the memory of malloc(),
// which therefore can neither reuse nor return that memory.
#pragma once

#include <torch/csrc/distributed/rpc/types.h>

#include <chrono>
#include <deque>
#include <mutex>

namespace rpc_backends {

class FailedRRefs {
 public:
  using ForkId = torch::distributed::rpc::ForkId;

  // torch keeps the address of the first RRef of this process whose creation fails, and writes to it whenever another
  // creation times out. This makes it an RRef that is never deleted. Call it before a request of rpc.remote() is sent.
  static void keep_first();

  // Call it when the future of the call has its error. The caller may not have got the RRef from torch yet.
  void add(const ForkId& id) { add({id, 0}); }

  // Whether release() has something to do, and whether add() was called long enough ago.
  bool is_due() const;
  bool is_empty() const;

  // Makes torch release the RRefs. Call it without a lock: torch sends messages to their owners.
  void release();

 private:
  struct Failed {
    ForkId id;
    int attempts;
    std::chrono::steady_clock::time_point due = std::chrono::steady_clock::now() + kWait;
  };

  // torch notes an RRef shortly after its message was sent, on the thread that calls rpc.remote().
  static constexpr std::chrono::milliseconds kWait{50};
  static constexpr int kMostAttempts = 20;

  void add(const Failed& failed);

  mutable std::mutex mutex_;
  std::deque<Failed> failed_;  // the earliest one is first
};

}  // namespace rpc_backends
