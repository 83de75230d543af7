// Tracks which events of the transport are noted. Several threads handle events at the same time, and a lost connection
// must not fail a call whose answer arrived before the loss.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <set>
#include <utility>

namespace rpc_backends {

class EventOrder {
 public:
  // One event while a thread handles it. The event is noted when note() is called or this object is destroyed.
  class Handling {
   public:
    Handling() = default;
    Handling(EventOrder& order, uint64_t number) : order_(&order), number_(number) {}
    Handling(const Handling&) = delete;
    Handling& operator=(const Handling&) = delete;
    ~Handling() { note(); }

    void note() noexcept {
      if (EventOrder* const order = std::exchange(order_, nullptr); order != nullptr && number_ != 0) {
        order->note(number_);
      }
    }

    // Waits until all earlier events are noted. Returns immediately for an event without a number.
    void wait_for_earlier() const {
      if (order_ != nullptr && number_ != 0) {
        order_->wait_for_earlier(number_);
      }
    }

   private:
    EventOrder* order_ = nullptr;
    uint64_t number_ = 0;
  };

  // Ends all waits, now and in future.
  void close() {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    noted_.notify_all();
  }

 private:
  // The longest wait for earlier events: a transport may skip a number.
  static constexpr std::chrono::seconds kLongest{1};

  void note(uint64_t number) noexcept {
    std::lock_guard<std::mutex> lock(mutex_);
    if (number != next_) {
      try {
        later_.insert(number);
      } catch (const std::bad_alloc&) {  // later events wait for it, up to kLongest
      }
      return;
    }
    ++next_;
    while (!later_.empty() && *later_.begin() <= next_) {
      next_ += *later_.begin() == next_ ? 1 : 0;
      later_.erase(later_.begin());
    }
    if (waiting_ > 0) {
      noted_.notify_all();
    }
  }

  void wait_for_earlier(uint64_t number) {
    std::unique_lock<std::mutex> lock(mutex_);
    ++waiting_;
    noted_.wait_for(lock, kLongest, [&] { return closed_ || next_ >= number; });
    --waiting_;
    // An event that is not noted by now may never be; no later event waits for it again.
    next_ = next_ < number ? number : next_;
  }

  std::mutex mutex_;
  std::condition_variable noted_;
  uint64_t next_ = 1;         // all earlier events are noted
  std::set<uint64_t> later_;  // the noted events after `next_`
  int waiting_ = 0;
  bool closed_ = false;
};

}  // namespace rpc_backends
