#include "inbox.h"

#include <algorithm>
#include <utility>

namespace rpc_backends::zeromq {

namespace {

constexpr uint64_t kWake = 1, kClose = 2;

// True in a thread that will take an event as soon as it has read some.
thread_local bool taking_ = false;

class Taking {
 public:
  Taking() { taking_ = true; }
  ~Taking() { taking_ = false; }
};

}  // namespace

Inbox::Inbox() {
  epoll_.add(wake_.fd(), EPOLLIN | EPOLLET, kWake);
  epoll_.add(close_.fd(), EPOLLIN, kClose);
}

void Inbox::rearm(uint64_t id, int fd) {
  epoll_.rearm(fd, EPOLLIN | EPOLLONESHOT, id);
}

uint64_t Inbox::add(int fd, const std::weak_ptr<Source>& source) {
  uint64_t id = 0;
  {
    std::lock_guard<std::mutex> lock(sources_mutex_);
    id = next_id_++;
    sources_.emplace(id, source);
  }
  epoll_.add(fd, EPOLLIN | EPOLLONESHOT, id);
  return id;
}

void Inbox::remove(uint64_t id, int fd) {
  epoll_.remove(fd);
  std::lock_guard<std::mutex> lock(sources_mutex_);
  sources_.erase(id);
}

// --- waking -----------------------------------------------------------------------------------------

bool Inbox::wants_help() const {
  // A thread that takes one event itself needs help only with the others.
  const size_t own = taking_ ? 1 : 0;
  return events_.size() + again_.size() > own && waiting_ > 0;
}

void Inbox::wake_if(bool wanted) {
  // Wakes one thread: that thread wakes the next if there is more.
  if (wanted && !waking_.exchange(true)) {
    wake_.set();
  }
}

void Inbox::push(Event event) {
  bool help = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) {
      return;
    }
    events_.push_back(std::move(event));
    events_.back().order = ++pushed_;  // only if it was added: there must be no gap
    help = wants_help();
  }
  wake_if(help);
}

void Inbox::again(uint64_t id) {
  bool help = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) {
      return;
    }
    again_.push_back(id);
    help = wants_help();
  }
  wake_if(help);
}

void Inbox::close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    events_.clear();
    again_.clear();
  }
  close_.set();
}

// --- receiving --------------------------------------------------------------------------------------

bool Inbox::take(Event& event) {
  if (events_.empty()) {
    return false;
  }
  event = std::move(events_.front());
  events_.pop_front();
  return true;
}

uint64_t Inbox::take_again() {
  if (again_.empty()) {
    return 0;
  }
  const uint64_t id = again_.front();
  again_.pop_front();
  return id;
}

Received Inbox::receive(Event& event, Clock::time_point deadline) {
  for (;;) {
    uint64_t id = 0;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (closed_) {
        return Received::kClosed;
      }
      if (take(event)) {
        const bool help = wants_help();
        lock.unlock();
        wake_if(help);
        return Received::kEvent;
      }
      id = take_again();
      if (id == 0) {
        // With the lock, so that a later push sees that a thread is waiting.
        ++waiting_;
      }
    }
    if (id != 0) {
      // Let other threads continue while this source still has data.
      handle(epoll_.wait(0));
      pump(id);
    } else if (!wait(deadline)) {
      return Received::kTimeout;
    }
  }
}

// Returns false if there was no event before the deadline.
bool Inbox::wait(Clock::time_point deadline) {
  int timeout = -1;
  if (deadline != Clock::time_point::max()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    timeout = static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
  }
  const uint64_t id = epoll_.wait(timeout);
  --waiting_;
  handle(id);
  return id != 0 || timeout != 0;
}

void Inbox::handle(uint64_t id) {
  if (id == kWake) {
    waking_ = false;
  } else if (id > kClose) {
    pump(id);
  }
}

void Inbox::pump(uint64_t id) {
  std::shared_ptr<Source> source;
  {
    std::lock_guard<std::mutex> lock(sources_mutex_);
    const auto entry = sources_.find(id);
    if (entry != sources_.end()) {
      source = entry->second.lock();
    }
  }
  if (source) {
    const Taking taking;
    source->pump();
  }
}

}  // namespace rpc_backends::zeromq
