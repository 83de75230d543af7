#include "inbox.h"

#include <sched.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace rpc_backends::ucx {

namespace {

constexpr uint64_t kWake = 1;
constexpr uint64_t kClose = 2;
constexpr uint64_t kTraffic = 3;
constexpr uint64_t kLate = 4;

// How long threads that occupy all cores may handle one event each before another thread is woken.
constexpr std::chrono::milliseconds kCrowdedTime{1};
// For how long threads are woken at once after they have exceeded that time. Functions that wait are often called many
// times in a row, and each of these calls would be delayed.
constexpr std::chrono::milliseconds kBlockedTime{100};

// If a thread was woken before this many times the poll time, threads poll for so long next time. Answers often arrive
// then: a call of a builtin of torch, or with 1 MiB, takes 0.1 to 0.3 ms, of which a wake-up is 0.05 ms.
constexpr int kLongestPolling = 3;

// How often to try to arm UCX while it still has something to do, before another thread takes over.
constexpr int kAttempts = 16;
// For how long at most an event waits for this: UCX may be copying.
constexpr std::chrono::microseconds kArmTime{10};
// For how long after a small message the thread that polls offers its core to others while UCX copies. A thread that
// waits for the message would otherwise wait for the end of a time slice, too, which is some milliseconds long.
constexpr std::chrono::milliseconds kSmallTime{1};
// How long to sleep while UCX waits for room in the queue of a peer. UCX does not signal the end of this wait, nor the
// traffic of other peers meanwhile, so the sleep delays their messages.
constexpr std::chrono::microseconds kFirstPause{50};
constexpr std::chrono::microseconds kLongestPause{500};

// Counts the thread that owns it, from one call of receive() to the next.
class Handling {
 public:
  ~Handling() { end(); }
  explicit operator bool() const { return threads_ != nullptr; }
  void begin(const std::shared_ptr<std::atomic<int>>& threads) {
    threads_ = threads;
    ++*threads_;
  }
  void end() {
    if (threads_ != nullptr) {
      --*threads_;
      threads_ = nullptr;
    }
  }

 private:
  std::shared_ptr<std::atomic<int>> threads_;
};

thread_local Handling handling;

// The cores that this thread may use. More than 1024 count as many.
int count_cores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : CPU_SETSIZE;
}

}  // namespace

// The thread that polls, until it is destroyed.
struct Inbox::Polling {
  ~Polling() {
    if (!has_ended) {  // by an exception: UCX's signal may not be armed
      inbox.wanted_ = true;
    }
    inbox.polling_ = false;
    if (!has_ended) {
      inbox.wake();  // the owner of this thread may not call receive() again
    }
  }

  Inbox& inbox;
  bool has_ended = false;
};

struct Inbox::Sleeping {
  explicit Sleeping(std::atomic<int>& threads) : threads(threads) { ++threads; }
  ~Sleeping() { --threads; }
  Sleeping(const Sleeping&) = delete;
  Sleeping& operator=(const Sleeping&) = delete;

  std::atomic<int>& threads;
};

Inbox::Inbox(Source& source, Clock::duration poll_time, Counters& counters)
    : source_(source),
      shortest_poll_time_(poll_time.count()),
      poll_time_(poll_time.count()),
      counters_(counters),
      late_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)),
      cores_(count_cores()) {
  epoll_.add(late_.get(), EPOLLIN | EPOLLET, kLate);
  epoll_.add(wake_.fd(), EPOLLIN | EPOLLET, kWake);
  epoll_.add(close_.fd(), EPOLLIN, kClose);
  epoll_.add(source_.event_fd(), EPOLLONESHOT, kTraffic);
  wanted_ = true;
}

void Inbox::watch(int fd, uint64_t id) {
  epoll_.add(fd, EPOLLIN | EPOLLONESHOT, id);
}

void Inbox::watch_again(int fd, uint64_t id) {
  epoll_.rearm(fd, EPOLLIN | EPOLLONESHOT, id);
}

void Inbox::unwatch(int fd) {
  epoll_.remove(fd);
}

void Inbox::push(Event event) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) {
      return;
    }
    events_.push_back(std::move(event));
    events_.back().order = ++pushed_;  // only if it was added: there must be no gap
    size_ = events_.size();
  }
  // The thread that polls takes one event itself.
  if (!polling_ || size_ > 1) {
    wake_if_helpful();
  }
}

void Inbox::wake() {
  if (!waking_.exchange(true)) {
    wake_.set();
  }
}

// The calling thread has taken an event or will take one.
void Inbox::wake_if_helpful() {
  if (sleeping_ == 0) {
    return;
  }
  if (is_crowded()) {
    wake_later();
  } else {
    wake();
  }
}

bool Inbox::is_crowded() const {
  const int threads = *handling_ + (handling ? 0 : 1);
  return threads >= cores_ && now() - last_blocked_ > Clock::duration(kBlockedTime).count();
}

uint64_t Inbox::count_taken() {
  std::lock_guard<std::mutex> lock(mutex_);
  return pushed_ - events_.size();
}

void Inbox::wake_later() {
  if (waking_later_.exchange(true)) {
    return;
  }
  taken_before_ = count_taken();
  itimerspec time{};
  time.it_value.tv_nsec = std::chrono::nanoseconds(kCrowdedTime).count();
  timerfd_settime(late_.get(), 0, &time, nullptr);
}

void Inbox::look_for_blocked_threads() {
  waking_later_ = false;
  if (!needs_a_thread()) {
    return;
  }
  if (count_taken() == taken_before_) {
    last_blocked_ = now();  // this thread polls or takes an event next
  } else {
    wake_later();
  }
}

void Inbox::may_block() {
  if (!handling) {
    return;
  }
  handling.end();
  if (waking_later_) {
    wake();
  }
}

void Inbox::nudge() {
  wanted_ = true;
  if (polling_) {
    return;
  }
  if (handling) {  // this thread will soon poll itself
    wake_if_helpful();
  } else {
    wake();
  }
}

void Inbox::close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    events_.clear();
    size_ = 0;
  }
  close_.set();
}

bool Inbox::take(Event& event) {
  bool more = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (events_.empty()) {
      return false;
    }
    event = std::move(events_.front());
    events_.pop_front();
    more = !events_.empty();
    size_ = events_.size();
  }
  handling.begin(handling_);
  // This thread will be busy, so another thread must take the next event, or poll.
  if (more || (wanted_ && !polling_)) {
    wake_if_helpful();
  }
  return true;
}

Received Inbox::receive(Event& event, Clock::time_point deadline) {
  handling.end();
  for (bool is_last = false;;) {
    if (closed_) {
      return Received::kClosed;
    }
    if (has_events() && take(event)) {
      return Received::kEvent;
    }
    const bool busy = wanted_ || expects_traffic();
    if (busy && !polling_.exchange(true)) {
      bool has_progressed = false;
      {
        Polling polling{*this};
        has_progressed = poll(deadline);
        polling.has_ended = true;
      }
      if (wanted_ && has_progressed) {
        wake_if_helpful();  // this thread will be busy
      }
      if (has_progressed || (wanted_ && Clock::now() < deadline)) {
        continue;
      }
    }
    if (is_last) {
      return Received::kTimeout;
    }
    is_last = Clock::now() >= deadline;  // look once more
    sleep_until(deadline);
  }
}

// Polls until there is an event, or there was no traffic for the poll time. Returns whether there is an event.
// Afterwards the event descriptor is armed, or another thread was asked to poll.
bool Inbox::poll(Clock::time_point deadline) {
  wanted_ = false;
  if (watched_) {
    epoll_.rearm(source_.event_fd(), 0, kTraffic);  // this thread sees the traffic itself
    watched_ = false;
  }
  auto pause = kFirstPause;
  int attempts = 0;
  while (!closed_) {
    const bool busy = source_.progress();
    if (has_events()) {
      leave_polling();
      return true;
    }
    if (busy) {
      expect_traffic();
      pause = kFirstPause;
      attempts = 0;
      if (now() - last_small_.load(std::memory_order_relaxed) < Clock::duration(kSmallTime).count()) {
        sched_yield();
      }
      continue;
    }
    if (expects_traffic()) {
      sched_yield();
      continue;
    }
    if (source_.arm()) {
      epoll_.rearm(source_.event_fd(), EPOLLIN | EPOLLONESHOT, kTraffic);
      watched_ = true;
      return false;
    }
    if (Clock::now() >= deadline) {
      wanted_ = true;
      return false;
    }
    // The first attempts may only take up old signals of the event descriptor.
    if (!source_.progress() && !has_events() && ++attempts > kAttempts) {
      // UCX waits for something that it does not signal, such as room in the queue of a suspended peer.
      handle(epoll_.wait(0));
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, kLongestPause);
    }
  }
  return false;
}

// Arms the event descriptor, so that another thread wakes up for traffic while this one handles an event. If the
// cores are occupied, wake_later() does that instead.
void Inbox::leave_polling() {
  expect_traffic();
  // While UCX copies it cannot be armed, and the event would wait for one more segment.
  if (is_crowded() || source_.is_copying()) {
    wanted_ = true;
    return;
  }
  const auto end = Clock::now() + kArmTime;
  for (int i = 0; i < kAttempts && Clock::now() < end; ++i) {
    if (source_.arm()) {
      epoll_.rearm(source_.event_fd(), EPOLLIN | EPOLLONESHOT, kTraffic);
      watched_ = true;
      return;
    }
    source_.progress();
  }
  wanted_ = true;
}

void Inbox::sleep_until(Clock::time_point deadline) {
  int timeout = -1;
  if (deadline != Clock::time_point::max()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    timeout = static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
  }
  uint64_t id = 0;
  {
    const Sleeping sleeping(sleeping_);
    // A later push() sees in the count above that this thread sleeps.
    if (!needs_a_thread() && !closed_) {
      id = epoll_.wait(timeout);
    }
  }
  handle(id);
}

// All threads slept, and traffic has arrived.
void Inbox::adapt_poll_time() {
  const Clock::rep silence = now() - last_traffic_.load(std::memory_order_relaxed);
  const Clock::rep longest = shortest_poll_time_ * kLongestPolling;
  poll_time_.store(silence < longest ? longest : shortest_poll_time_, std::memory_order_relaxed);
}

void Inbox::handle(uint64_t id) {
  if (id == kWake) {
    waking_ = false;
  } else if (id == kTraffic) {
    ++counters_.sleeps;
    adapt_poll_time();
    wanted_ = true;
  } else if (id == kLate) {
    look_for_blocked_threads();
  } else if (id >= kFirstId) {
    source_.on_ready(id);
  }
}

}  // namespace rpc_backends::ucx
