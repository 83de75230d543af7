// The events of an engine with threads of its own: they push events, and the threads of the agent receive them.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "rpc_backends_agents/gated_transport.h"

namespace rpc_backends {

class EventInbox {
 public:
  using Clock = GatedTransport::Clock;

  // Does not wait and calls nothing, so it may be called with a lock held. After close(), it drops the event.
  void push(Event event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!closed_) {
      event.order = ++pushed_;  // only if it was added: there must be no gap
      events_.push_back(std::move(event));
      ready_.notify_one();
    }
  }

  Received receive(Event& event, Clock::time_point deadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto is_ready = [this] { return closed_ || !events_.empty(); };
    if (deadline == Clock::time_point::max()) {
      ready_.wait(lock, is_ready);
    } else if (!ready_.wait_until(lock, deadline, is_ready)) {
      return Received::kTimeout;
    }
    if (closed_) {
      return Received::kClosed;
    }
    event = std::move(events_.front());
    events_.pop_front();
    return Received::kEvent;
  }

  void close() {
    std::deque<Event> dropped;  // destroyed without the lock, because that may have to wait for Python
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    dropped.swap(events_);
    ready_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Event> events_;
  uint64_t pushed_ = 0;
  bool closed_ = false;
};

}  // namespace rpc_backends
