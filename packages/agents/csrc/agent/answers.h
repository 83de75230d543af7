// The large answers that the transport has not sent yet, by receiver.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace rpc_backends {

class Answers {
 public:
  // Answers smaller than this many bytes do not count: max_unanswered_bytes of their caller limits their number.
  static constexpr uint64_t kLarge = 1 << 16;

  // `most`: if this many bytes of answers to one peer are unsent, the peer counts as behind.
  explicit Answers(uint64_t most) : most_(most) {}

  // Adds an answer of kLarge bytes or more. `unsent` expires when the transport has released the message.
  void add(int peer, uint64_t bytes, std::weak_ptr<void> unsent) {
    std::lock_guard<std::mutex> lock(mutex_);
    Peer& receiver = peers_[peer];
    forget_sent(receiver);
    receiver.unsent.emplace_back(bytes, std::move(unsent));
    receiver.bytes += bytes;
    any_ = true;
  }

  // Whether the peer must read its earlier answers before it gets further ones.
  bool is_behind(int peer) {
    if (!any_) {
      return false;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    const auto receiver = peers_.find(peer);
    if (receiver == peers_.end()) {
      return false;
    }
    forget_sent(receiver->second);
    const bool is_behind = receiver->second.bytes > most_;
    if (receiver->second.unsent.empty()) {
      peers_.erase(receiver);
      any_ = !peers_.empty();
    }
    return is_behind;
  }

 private:
  struct Peer {
    std::deque<std::pair<uint64_t, std::weak_ptr<void>>> unsent;  // in the order in which they are sent
    uint64_t bytes = 0;
  };

  static void forget_sent(Peer& peer) {
    while (!peer.unsent.empty() && peer.unsent.front().second.expired()) {
      peer.bytes -= peer.unsent.front().first;
      peer.unsent.pop_front();
    }
  }

  const uint64_t most_;
  std::mutex mutex_;
  std::unordered_map<int, Peer> peers_;
  std::atomic<bool> any_{false};
};

}  // namespace rpc_backends
