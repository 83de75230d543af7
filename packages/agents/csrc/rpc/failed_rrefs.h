// RRefs that rpc.remote() could not create. torch keeps each of them for the life of the process, unless the call has
// timed out: it removes an RRef from those that wait for their owner when the owner has answered, and the callback that
// should do so after an error throws first. These small objects lie between large tensors in the memory of malloc(),
// which therefore can neither reuse nor return that memory.
#pragma once

#include <torch/csrc/distributed/rpc/rref_impl.h>
#include <torch/csrc/distributed/rpc/types.h>

#include <chrono>
#include <deque>
#include <exception>
#include <mutex>

namespace rpc_backends {

class FailedRRefs {
 public:
  using ForkId = torch::distributed::rpc::ForkId;

  // The first RRef of this process with an error must live for ever: torch keeps its address, and when another RRef
  // times out, it marks this one instead. So this keeps the first, and marks each that has timed out. Call it before
  // the future of a call gets its error. With an id it returns whether there is a first RRef now, and throws nothing.
  static bool note(const ForkId& id, const std::exception_ptr& error);

  static void note(const c10::intrusive_ptr<torch::distributed::rpc::RRef>& rref, const std::exception_ptr& error);

  // Call it when the future of the call has its error. The caller may not have got the RRef from torch yet.
  // `has_first`: what note() has returned.
  void add(const ForkId& id, bool has_first) { add({id, !has_first, 0}); }

  // Whether release() has something to do, and whether add() was called long enough ago.
  bool is_due() const;
  bool is_empty() const;

  // Makes torch release the RRefs. Call it without a lock: torch sends messages to their owners.
  void release();

 private:
  struct Failed {
    ForkId id;
    bool may_be_first;  // then it lives for ever, too
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
