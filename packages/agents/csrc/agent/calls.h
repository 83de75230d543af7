// The calls that wait for an answer: by id, with their timeouts, and the unanswered bytes of each peer.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>
#include <torch/csrc/distributed/rpc/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "agent/lost_peers.h"
#include "record/call_log.h"
#include "rpc/futures.h"

namespace rpc_backends {

using Clock = std::chrono::steady_clock;

class Calls {
 public:
  // What a call counts in addition to the bytes of its message: its future and its entry here.
  static constexpr uint64_t kCallBytes = 1024;

  struct Call {
    int peer = -1;
    FuturePtr future;
    uint64_t bytes = 0;
    // Expires when the transport has released the message.
    std::weak_ptr<void> unsent;
    std::chrono::milliseconds timeout{0};
    std::multimap<Clock::time_point, uint64_t>::iterator deadline;  // not set if timeout is 0
    std::string error;  // if not empty, the call ends with this error at its deadline instead of a timeout
    CallLog::Place* recorded = nullptr;  // where the agent records the end of the call; null if it does not
    std::optional<torch::distributed::rpc::ForkId> rref;  // that the call creates on this worker
  };

  // `unanswered_bytes`: if this many bytes to one peer are unanswered, add() waits.
  // `on_late`: called with calls that have timed out, on the timeout thread, which it must not block.
  // `on_pulse`: called repeatedly on the timeout thread after ask_for_pulse(), until it returns false.
  Calls(uint64_t unanswered_bytes, std::function<void(std::vector<Call>)> on_late, std::function<bool()> on_pulse)
      : unanswered_bytes_(unanswered_bytes), on_late_(std::move(on_late)), on_pulse_(std::move(on_pulse)) {}
  ~Calls();

  // Starts the timeout thread. stop() ends it; the calls stay.
  void start();
  void stop();
  void ask_for_pulse();

  // Returns a new, unique id.
  uint64_t next_id() { return next_++; }

  // Adds a call that started at `started`, and returns its future. `call` must have peer, future, bytes, unsent and
  // timeout (0 means no timeout). With `may_wait`, this waits until the peer's unanswered bytes leave room for the
  // call, and returns null if the call times out first.
  FuturePtr add(uint64_t id, Call call, Clock::time_point started, bool may_wait);

  // Makes a call end with `error` after `delay`, through `on_late`, unless it ends earlier.
  void fail_after(std::chrono::milliseconds delay, uint64_t id, const std::string& error);

  // Whether the call waits for an answer of `peer`.
  bool waits(uint64_t id, int peer) const;

  // Removes and returns the call that `peer` answers; empty if there is no such call, for example after a timeout.
  std::optional<Call> take(uint64_t id, int peer);

  // By their ids. A map, because calls move from one to another without memory: nothing else ends them when it is
  // short.
  using Taken = std::map<uint64_t, Call>;

  // Remove and return the calls that wait for `peer` and have an id less than `below`, or all calls.
  Taken take_all(int peer, uint64_t below = LostPeers::kAllCalls);
  Taken take_all();

  size_t waiting() const;
  size_t waiting(int peer) const;
  // The bytes of all peers that count towards the limit.
  uint64_t unanswered_bytes() const;
  uint64_t late_answers() const { return late_answers_; }
  uint64_t timeouts() const { return timeouts_; }

 private:
  struct GivenUp {
    uint64_t bytes = 0;
    std::weak_ptr<void> unsent;
  };

  struct Peer {
    uint64_t unanswered = 0;
    // Calls that timed out before their messages were sent. Their bytes count until the messages are sent.
    std::unordered_map<uint64_t, GivenUp> given_up;
    size_t look_at = 0;  // the size of given_up at which the next look_through() is due
  };

  void watch();
  bool fits(int peer, uint64_t bytes) const;
  void give_up(uint64_t id, const Call& call);
  void look_through(Peer& peer);
  void give_back(Peer& peer, uint64_t bytes);
  void forget_deadline(const Call& call);

  const uint64_t unanswered_bytes_;
  const std::function<void(std::vector<Call>)> on_late_;
  const std::function<bool()> on_pulse_;
  mutable std::mutex mutex_;
  std::condition_variable room_;
  std::condition_variable alarm_;
  Taken calls_;
  std::multimap<Clock::time_point, uint64_t> deadlines_;
  std::unordered_map<int, Peer> peers_;
  Clock::time_point watched_ = Clock::time_point::max();
  bool pulse_wanted_ = false;
  Clock::time_point pulse_;
  bool stopped_ = true;
  std::thread thread_;
  std::atomic<uint64_t> next_{1};
  std::atomic<uint64_t> late_answers_{0};
  std::atomic<uint64_t> timeouts_{0};
};

}  // namespace rpc_backends
