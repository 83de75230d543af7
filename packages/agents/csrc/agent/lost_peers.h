// The peers whose connections are lost.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

namespace rpc_backends {

// Several threads handle events, so a loss may come here after the event that ended it. `event` is the number of the
// event: one that is earlier than another event of the same peer changes nothing. An event without a number, 0, always
// counts.
class LostPeers {
 public:
  // As a limit for the numbers of calls.
  static constexpr uint64_t kAllCalls = UINT64_MAX;

  // Returns which calls to the peer are lost: those whose numbers are less than this.
  uint64_t add(int peer, const std::string& reason, uint64_t event) {
    std::lock_guard<std::mutex> lock(mutex_);
    Newest& newest = newest_[peer];
    if (event != 0 && event < newest.event) {
      return newest.next_call;
    }
    reasons_[peer] = reason;
    newest.event = std::max(newest.event, event);
    size_ = reasons_.size();
    return kAllCalls;
  }

  // The peer is found. `next_call`: later calls have this number or a greater one.
  void remove(int peer, uint64_t event, uint64_t next_call) {
    std::lock_guard<std::mutex> lock(mutex_);
    Newest& newest = newest_[peer];
    if (event != 0 && event < newest.event) {
      return;
    }
    reasons_.erase(peer);
    newest = {std::max(newest.event, event), next_call};
    size_ = reasons_.size();
  }

  // The peer has left.
  void forget(int peer) {
    std::lock_guard<std::mutex> lock(mutex_);
    reasons_.erase(peer);
    newest_.erase(peer);
    size_ = reasons_.size();
  }

  // Returns why `peer` cannot be reached; empty if it is not lost.
  std::string why(int peer) const {
    if (size_ == 0) {
      return {};
    }
    std::lock_guard<std::mutex> lock(mutex_);
    const auto lost = reasons_.find(peer);
    return lost == reasons_.end() ? std::string() : "the connection is lost: " + lost->second;
  }

 private:
  struct Newest {
    uint64_t event = 0;
    uint64_t next_call = 0;  // when the peer was found last
  };

  mutable std::mutex mutex_;
  std::unordered_map<int, std::string> reasons_;
  std::unordered_map<int, Newest> newest_;  // the last event of each peer that has been lost or connected
  std::atomic<size_t> size_{0};
};

}  // namespace rpc_backends
