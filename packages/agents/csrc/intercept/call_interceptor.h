// An interceptor for Python: it observes and refuses calls on a thread of its own. This thread may wait for the GIL.
// The threads that send and receive messages must not.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "rpc_backends_agents/forks.h"
#include "rpc_backends_agents/interceptor.h"

namespace rpc_backends {

// A call of a function, as Python sees it.
struct Call {
  explicit Call(const RequestHead& head);

  const Direction direction;
  const int32_t type;
  const int peer_id;
  const std::string peer;
  const std::string worker;
  const std::string function;
  const std::chrono::milliseconds timeout;
  const uint64_t payload_bytes;
  const size_t tensors;
  const uint64_t tensor_bytes;
  const std::chrono::steady_clock::time_point begin;
};

using CallPtr = std::shared_ptr<const Call>;

class CallInterceptor final : public Interceptor, public std::enable_shared_from_this<CallInterceptor> {
 public:
  // Gives the reason to refuse a call, or an empty text.
  using Decide = std::function<std::string(const CallPtr&)>;
  // Gets a call that has ended, how long it took, and the error.
  using Ended = std::function<void(const CallPtr&, double seconds, const End&)>;

  // Functions that are empty are not called. Others are called on this interceptor's thread, without the GIL, and
  // released when that thread ends.
  CallInterceptor(Decide on_outgoing, Decide on_incoming, Ended on_end);
  ~CallInterceptor() override;

  void on_start(const AgentInfo& agent) override;
  bool decides(Direction direction) const noexcept {
    return direction == Direction::kOutgoing ? decides_outgoing_ : decides_incoming_;
  }
  bool wants(Direction direction) const noexcept override { return observes_ || decides(direction); }
  void on_request(RequestPtr request) override;
  // Ends the interceptor's thread after the jobs that are queued now.
  void on_stop() override;
  Metrics metrics() const override;

 private:
  class Watch;

  // A request to decide, or a call that has ended if `request` is null.
  struct Job {
    CallPtr call;
    RequestPtr request;
    double seconds = 0;
    End end;
  };

  // What the interceptor's thread shares with observers, which may outlive the interceptor.
  struct Jobs {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Job> queue;
    size_t ended = 0;  // calls in the queue that have ended
    bool closed = false;
    uint64_t unseen = 0;  // calls that ended while the queue was full
  };

  void run();
  void run(Job& job);

  const Birthplace birthplace_;
  const bool decides_outgoing_, decides_incoming_, observes_;
  Decide on_outgoing_, on_incoming_;  // only the interceptor's thread uses these three
  Ended on_end_;
  const std::shared_ptr<Jobs> jobs_ = std::make_shared<Jobs>();
  std::atomic<uint64_t> refused_{0};
  std::thread thread_;
};

void bind_call_interceptor(pybind11::module_& module);

}  // namespace rpc_backends
