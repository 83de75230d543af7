// The peers whose connections are lost.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <unordered_map>

namespace rpc_backends {

class LostPeers {
 public:
  void add(int peer, const std::string& reason) {
    std::lock_guard<std::mutex> lock(mutex_);
    reasons_[peer] = reason;
    size_ = reasons_.size();
  }

  void remove(int peer) {
    std::lock_guard<std::mutex> lock(mutex_);
    reasons_.erase(peer);
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
  std::atomic<size_t> size_{0};
};

}  // namespace rpc_backends
