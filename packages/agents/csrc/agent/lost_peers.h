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
  void add(int peer, const std::string& reason, uint64_t event) {
    std::lock_guard<std::mutex> lock(mutex_);
    uint64_t& newest = newest_[peer];
    if (event != 0 && event < newest) {
      return;
    }
    reasons_[peer] = reason;
    newest = std::max(newest, event);
    size_ = reasons_.size();
  }

  void remove(int peer, uint64_t event) {
    std::lock_guard<std::mutex> lock(mutex_);
    uint64_t& newest = newest_[peer];
    if (event != 0 && event < newest) {
      return;
    }
    reasons_.erase(peer);
    newest = std::max(newest, event);
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
  mutable std::mutex mutex_;
  std::unordered_map<int, std::string> reasons_;
  std::unordered_map<int, uint64_t> newest_;  // the last event of each peer that has been lost or connected
  std::atomic<size_t> size_{0};
};

}  // namespace rpc_backends
