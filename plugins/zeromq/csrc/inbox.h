// The queue of events for the threads in receive(), which also wait here.
//
// All threads wait in one epoll set, so the kernel wakes the thread that will handle a message, without a hand-
// over. A thread that wakes reads a few messages from its source. It takes one; the others stay in the queue, and
// another waiting thread is woken for them.
//
// One thread at a time reads a source. It calls rearm() when it has read everything, or else again().
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "rpc_backends_agents/fd.h"
#include "rpc_backends_agents/gated_transport.h"

namespace rpc_backends::zeromq {

using Clock = std::chrono::steady_clock;

// A source of events.
class Source {
 public:
  virtual ~Source() = default;

  // Reads some events and pushes them into the inbox.
  virtual void pump() = 0;
};

class Inbox {
 public:
  Inbox();

  // Returns the id of the source, for the calls below. After each pump(), the descriptor is not waited for until
  // rearm().
  uint64_t add(int fd, const std::weak_ptr<Source>& source);
  void rearm(uint64_t id, int fd);

  void remove(uint64_t id, int fd);

  // Schedules another pump(), because there is more to read.
  void again(uint64_t id);

  void push(Event event);

  Received receive(Event& event, Clock::time_point deadline = Clock::time_point::max());

  // Makes all current and future calls of receive() return kClosed.
  void close();

 private:
  bool take(Event& event);
  uint64_t take_again();
  bool wants_help() const;
  void wake_if(bool wanted);
  bool wait(Clock::time_point deadline);
  void handle(uint64_t id);
  void pump(uint64_t id);

  Epoll epoll_;
  Signal wake_;   // edge-triggered: each write wakes one thread
  Signal close_;  // level-triggered: stays readable for all threads

  std::mutex mutex_;
  std::deque<Event> events_;
  uint64_t pushed_ = 0;
  std::deque<uint64_t> again_;
  bool closed_ = false;

  std::atomic<int> waiting_{0};
  std::atomic<bool> waking_{false};  // a thread was woken and has not looked yet

  std::mutex sources_mutex_;
  std::unordered_map<uint64_t, std::weak_ptr<Source>> sources_;
  uint64_t next_id_ = 3;
};

}  // namespace rpc_backends::zeromq
