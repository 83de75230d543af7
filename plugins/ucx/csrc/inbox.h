// Gives the transport's events to the threads that wait in receive(). These threads also make UCX progress.
//
// One thread at a time polls UCX. It stops a short time after the last traffic. Then all threads sleep, until UCX
// signals traffic through its event descriptor. If that is soon, the wake-up has cost more than polling would have, and
// threads poll longer next time. A thread that takes an event arms this signal instead of waking another
// thread to poll. So another thread wakes only if new traffic arrives while the event is handled.
//
// If as many threads handle events as there are processor cores, another thread would only compete with them (and for
// Python's GIL). Then it wakes later, and only if none of them has taken another event meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "rpc_backends_agents/fd.h"
#include "rpc_backends_agents/gated_transport.h"
#include "settings.h"

namespace rpc_backends::ucx {

class Inbox {
 public:
  // The object that is polled. One thread at a time calls it, any thread.
  struct Source {
    virtual ~Source() = default;
    // Handles what has arrived; returns whether there was anything.
    virtual bool progress() = 0;
    // Makes the event descriptor signal the next traffic; returns false if there is already some.
    virtual bool arm() = 0;
    // Whether progress() copies a large message, one segment in each call.
    virtual bool is_copying() const { return false; }
    // Handles a descriptor that was added with watch().
    virtual void on_ready(uint64_t id) = 0;
    virtual int event_fd() const = 0;
  };

  Inbox(Source& source, Clock::duration poll_time, Counters& counters);

  // Calls the source's on_ready(id) once when the descriptor is readable. `id` must be at least kFirstId.
  static constexpr uint64_t kFirstId = 16;
  void watch(int fd, uint64_t id);
  void watch_again(int fd, uint64_t id);
  void unwatch(int fd);

  void push(Event event);

  // Extends the polling, because traffic is expected.
  void expect_traffic() { last_traffic_.store(now(), std::memory_order_relaxed); }

  // A small message has arrived: polling leaves the core to others for a while.
  void note_small() { last_small_.store(now(), std::memory_order_relaxed); }

  // Makes a thread poll if none does.
  void nudge();

  // Call it when a thread that handles an event may wait for another event, such as an answer. It does not count as one
  // that handles an event any more, so another thread takes over at once.
  void may_block();

  Received receive(Event& event, Clock::time_point deadline);

  // Makes all calls of receive() return kClosed.
  void close();

  // How long threads poll after the last traffic now.
  Clock::duration poll_time() const { return Clock::duration(poll_time_.load(std::memory_order_relaxed)); }

 private:
  static Clock::rep now() { return Clock::now().time_since_epoch().count(); }
  // Whether the last traffic was so recent that it is worth polling for more.
  bool expects_traffic() const { return now() - last_traffic_.load(std::memory_order_relaxed) < poll_time().count(); }

  struct Polling;
  struct Sleeping;

  bool take(Event& event);
  bool has_events() const { return size_ > 0; }
  bool needs_a_thread() const { return has_events() || (wanted_ && !polling_); }
  bool poll(Clock::time_point deadline);
  void leave_polling();
  void sleep_until(Clock::time_point deadline);
  void handle(uint64_t id);
  void adapt_poll_time();
  void wake();
  void wake_if_helpful();
  bool is_crowded() const;
  uint64_t count_taken();
  void wake_later();
  void look_for_blocked_threads();

  Source& source_;
  const Clock::rep shortest_poll_time_;
  std::atomic<Clock::rep> poll_time_;
  Counters& counters_;
  Epoll epoll_;
  Signal wake_;
  Signal close_;
  Fd late_;  // the timer of wake_later()
  const int cores_;

  std::mutex mutex_;
  std::deque<Event> events_;
  uint64_t pushed_ = 0;
  std::atomic<size_t> size_{0};
  std::atomic<bool> closed_{false};

  std::atomic<bool> polling_{false};  // a thread polls
  std::atomic<bool> wanted_{false};   // a thread must poll, because the event descriptor is not armed
  bool watched_ = false;              // the event descriptor is enabled; used only by the thread that polls
  std::atomic<int> sleeping_{0};
  std::atomic<bool> waking_{false};
  std::atomic<Clock::rep> last_traffic_{0}, last_small_{0};

  // Threads that handle an event. A thread that ends may outlive this object.
  const std::shared_ptr<std::atomic<int>> handling_ = std::make_shared<std::atomic<int>>(0);
  std::atomic<bool> waking_later_{false};    // the timer runs
  std::atomic<uint64_t> taken_before_{0};    // how many events had been taken when the timer was set
  std::atomic<Clock::rep> last_blocked_{0};  // when threads were last found to be blocked
};

}  // namespace rpc_backends::ucx
