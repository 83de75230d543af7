// Where events wait for the threads in receive(), and where those threads wait for events.
//
// All threads wait in one epoll set, so the kernel wakes the thread that will handle a message and nothing
// is handed on. A thread that wakes reads what its source has, a few messages at once; what is more than
// its own stays in the queue, and another thread is woken if one waits.
//
// The sources are edge-triggered, because that is what the file descriptor of a ZeroMQ socket is. Whoever
// uses a socket in any way must read it until it is empty, or say again(), before others may have it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "fd.h"

namespace rpc_backends::zeromq {

using Clock = std::chrono::steady_clock;

// Something that events are read from.
class Source {
 public:
  virtual ~Source() = default;

  // Reads some, and pushes them into the inbox.
  virtual void pump() = 0;
};

class Inbox {
 public:
  enum class Outcome { kEvent, kTimeout, kClosed };

  Inbox();

  // Returns a number for the source, for again() and remove().
  uint64_t add(int fd, const std::weak_ptr<Source>& source);

  // The same for a source that is pumped by one thread at a time: no other is, until rearm().
  uint64_t add_one_shot(int fd, const std::weak_ptr<Source>& source);
  void rearm(uint64_t id, int fd);

  void remove(uint64_t id, int fd);

  // Has pump() called again soon: there is more to read.
  void again(uint64_t id);

  // The same without waking anybody, if events wait: whoever comes for them comes by. Returns false if
  // none do.
  bool again_after_events(uint64_t id);

  void push(Event event);

  Outcome receive(Event& event, Clock::time_point deadline = Clock::time_point::max());

  // Has receive() return kClosed everywhere, now and from now on.
  void close();

 private:
  uint64_t add(int fd, const std::weak_ptr<Source>& source, uint32_t events);
  bool take(Event& event);
  uint64_t take_again();
  bool wants_help() const;
  void wake_if(bool wanted);
  bool wait(Clock::time_point deadline);
  void handle(uint64_t id);
  void pump(uint64_t id);

  Epoll epoll_;
  Signal wake_;   // edge-triggered: each write wakes one thread
  Signal close_;  // level-triggered: readable for ever, for all threads

  std::mutex mutex_;
  std::deque<Event> events_;
  uint64_t pushed_ = 0;
  std::deque<uint64_t> again_;
  bool closed_ = false;

  std::atomic<int> waiting_{0};
  std::atomic<bool> waking_{false};  // a thread has been woken, and has not looked yet

  std::mutex sources_mutex_;
  std::unordered_map<uint64_t, std::weak_ptr<Source>> sources_;
  uint64_t next_id_ = 3;
};

}  // namespace rpc_backends::zeromq
