// The calls that wait for an answer: by id, with their timeouts, and what is unanswered of each peer.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
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
  struct Call {
    int peer = -1;
    FuturePtr future;
    uint64_t bytes = 0;
    std::chrono::milliseconds timeout{0};
    std::multimap<Clock::time_point, uint64_t>::iterator deadline;  // unless timeout is 0
  };

  // `unanswered_bytes`: what may be on its way to one peer before admit() waits.
  // `on_late`: gets the calls whose time is up, on the thread of the timeouts, which it must not hold up.
  Calls(uint64_t unanswered_bytes, std::function<void(std::vector<Call>)> on_late)
      : unanswered_bytes_(unanswered_bytes), on_late_(std::move(on_late)) {}
  ~Calls();

  // Starts the thread of the timeouts; stop() ends it, and lets go of nothing.
  void start();
  void stop();

  // Returns an id that no other call has.
  uint64_t next_id() { return next_++; }

  // Enters a call, and returns its future. `timeout` 0 is never.
  FuturePtr add(uint64_t id, int peer, uint64_t bytes, std::chrono::milliseconds timeout);

  // Waits until there is room for `bytes` more on the way to `peer`. False if that took `timeout`.
  bool admit(int peer, uint64_t bytes, std::chrono::milliseconds timeout);

  // Takes the call that `peer` answers. None if there is no such call: its time was up, say.
  std::optional<Call> take(uint64_t id, int peer);

  // Takes all calls that wait for `peer`, or for anybody.
  std::vector<Call> take_all(int peer);
  std::vector<Call> take_all();

  size_t waiting() const;
  uint64_t late_answers() const { return late_answers_; }
  uint64_t timeouts() const { return timeouts_; }

 private:
  struct Peer {
    uint64_t unanswered = 0;
    // Calls whose time was up: what they have sent may be on its way still.
    std::unordered_map<uint64_t, uint64_t> given_up;
  };

  void watch();
  void give_back(Peer& peer, uint64_t bytes);
  void forget_deadline(const Call& call);

  const uint64_t unanswered_bytes_;
  const std::function<void(std::vector<Call>)> on_late_;
  mutable std::mutex mutex_;
  std::condition_variable room_;
  std::condition_variable alarm_;
  std::unordered_map<uint64_t, Call> calls_;
  std::multimap<Clock::time_point, uint64_t> deadlines_;
  std::unordered_map<int, Peer> peers_;
  Clock::time_point watched_ = Clock::time_point::max();
  bool stopped_ = true;
  std::thread thread_;
  std::atomic<uint64_t> next_{1};
  std::atomic<uint64_t> late_answers_{0};
  std::atomic<uint64_t> timeouts_{0};
};

// Completes a future with an error of this text.
void fail(const FuturePtr& future, const std::string& text);

// The text for a call whose time was up.
std::string timeout_text(std::chrono::milliseconds timeout);

}  // namespace rpc_backends
