// The requests that run on this worker, and the threads that wait until nothing is active any more.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace rpc_backends {

class Activity {
 public:
  void begin_request() { ++active_; }
  void end_request() { --active_; }

  // Counts requests whose functions have returned futures without a value: of this worker, and of other callers.
  void count_own_pending(int64_t change) { own_pending_ += change; }
  void count_pending(int caller, int64_t change) {
    const std::lock_guard<std::mutex> lock(pending_mutex_);
    pending_ += change;
    if ((pending_by_caller_[caller] += change) == 0) {
      pending_by_caller_.erase(caller);
    }
  }

  int64_t active() const { return active_; }
  // Of other workers' requests, and of all.
  int64_t pending() const { return pending_; }
  int64_t all_pending() const { return pending_ + own_pending_; }
  // Whether a function runs.
  bool is_running() const { return active_ != all_pending(); }

  // The other workers with pending requests that may wait for an answer; and notes that one of them waits for none.
  std::vector<int> callers_of_pending() const {
    const std::lock_guard<std::mutex> lock(pending_mutex_);
    std::vector<int> callers;
    for (const auto& pending : pending_by_caller_) {
      if (not_waiting_.count(pending.first) == 0) {
        callers.push_back(pending.first);
      }
    }
    return callers;
  }
  void note_not_waiting(int caller) {
    {
      const std::lock_guard<std::mutex> lock(pending_mutex_);
      not_waiting_.insert(caller);
    }
    tell();
  }

  // Whether `is_meant` is true for a caller with pending requests that may wait for an answer.
  template <typename IsMeant>
  bool has_pending_of(const IsMeant& is_meant) const {
    const std::lock_guard<std::mutex> lock(pending_mutex_);
    return std::any_of(pending_by_caller_.begin(), pending_by_caller_.end(), [&](const auto& pending) {
      return not_waiting_.count(pending.first) == 0 && is_meant(pending.first);
    });
  }

  // Waits until `is_over`, which is called again after each tell(), or for `seconds`.
  template <typename IsOver>
  void wait(double seconds, const IsOver& is_over) {
    std::unique_lock<std::mutex> lock(mutex_);
    ++waiting_;
    changed_.wait_for(lock, std::chrono::duration<double>(seconds), is_over);
    --waiting_;
  }

  // Something has ended.
  void tell() {
    if (waiting_ > 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      changed_.notify_all();
    }
  }

 private:
  std::atomic<int64_t> active_{0};
  std::atomic<int64_t> pending_{0}, own_pending_{0};  // counted in active_, too
  mutable std::mutex pending_mutex_;
  std::unordered_map<int, int64_t> pending_by_caller_;
  std::unordered_set<int> not_waiting_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> waiting_{0};
};

}  // namespace rpc_backends
