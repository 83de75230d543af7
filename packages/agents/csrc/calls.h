// The calls that wait for an answer: by id, with their timeouts, and what is unanswered of each peer.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

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

namespace rpc_backends {

using FuturePtr = c10::intrusive_ptr<torch::distributed::rpc::JitFuture>;
using Clock = std::chrono::steady_clock;

class Calls {
 public:
  // What counts of a call, beside the bytes of its message: its future, and what is kept of it.
  static constexpr uint64_t kCallBytes = 1024;

  struct Call {
    int peer = -1;
    FuturePtr future;
    uint64_t bytes = 0;
    // Dies when the transport has let go of the message.
    std::weak_ptr<void> unsent;
    std::chrono::milliseconds timeout{0};
    std::multimap<Clock::time_point, uint64_t>::iterator deadline;  // unless timeout is 0
    std::string error;  // that it ends with at its deadline, in place of that its time is up
  };

  // `unanswered_bytes`: what may be on its way to one peer before add() waits.
  // `on_late`: gets the calls whose time is up, on the thread of the timeouts, which it must not hold up.
  // `on_pulse`: called on that thread some time after ask_for_pulse(), until it returns false.
  Calls(uint64_t unanswered_bytes, std::function<void(std::vector<Call>)> on_late, std::function<bool()> on_pulse)
      : unanswered_bytes_(unanswered_bytes), on_late_(std::move(on_late)), on_pulse_(std::move(on_pulse)) {}
  ~Calls();

  // Starts the thread of the timeouts; stop() ends it, and lets go of nothing.
  void start();
  void stop();
  void ask_for_pulse();

  // Returns an id that no other call has.
  uint64_t next_id() { return next_++; }

  // Enters a call of peer, bytes, unsent and timeout (0 is never), which has begun at `started`; returns its future.
  // If it may wait, it does until there is room for its bytes on the way to the peer; null if its time was up then.
  FuturePtr add(uint64_t id, Call call, Clock::time_point started, bool may_wait);

  // Has a call end with `error` after `delay`, by `on_late`, if nothing ends it before.
  void fail_after(std::chrono::milliseconds delay, uint64_t id, const std::string& error);

  // Takes the call that `peer` answers. None if there is no such call: its time was up, say.
  std::optional<Call> take(uint64_t id, int peer);

  // Takes all calls that wait for `peer`, or for anybody.
  std::vector<Call> take_all(int peer);
  std::vector<Call> take_all();

  size_t waiting() const;
  uint64_t late_answers() const { return late_answers_; }
  uint64_t timeouts() const { return timeouts_; }

 private:
  struct GivenUp {
    uint64_t bytes = 0;
    std::weak_ptr<void> unsent;
  };

  struct Peer {
    uint64_t unanswered = 0;
    // Calls whose time was up before their messages had left. Their bytes count until these have.
    std::unordered_map<uint64_t, GivenUp> given_up;
    size_t look_at = 0;  // how many of these there may be before they are looked through
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
  std::unordered_map<uint64_t, Call> calls_;
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

// Complete a future. What torch and the program have hung on it runs here and now; what that throws is noted and
// goes no further. (RRefContext throws where the peer of an RRef is lost.)
void complete(const FuturePtr& future, c10::IValue value);
void fail(const FuturePtr& future, const std::string& text);

// The text for a call whose time was up.
std::string timeout_text(std::chrono::milliseconds timeout);

}  // namespace rpc_backends
