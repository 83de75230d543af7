#include "event_loop.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "rpc_backends_agents/threads.h"

namespace rpc_backends::zeromq {

namespace {

constexpr uint64_t kSignal = 1;

}  // namespace

EventLoop::EventLoop(const char* thread_name) {
  epoll_.add(signal_.fd(), EPOLLIN, kSignal);
  thread_ = start_thread(thread_name, [this] { loop(); });
}

void EventLoop::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
  }
  signal_.set();
  if (thread_.joinable()) {
    thread_.join();
  }
  // Destroy the tasks without the lock, because their destructors may need it.
  decltype(watches_) watches;
  decltype(posted_) posted;
  decltype(timed_) timed;
  std::lock_guard<std::mutex> lock(mutex_);
  watches.swap(watches_);
  posted.swap(posted_);
  timed.swap(timed_);
}

uint64_t EventLoop::watch(int fd, Task task, uint32_t events) {
  uint64_t id = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    id = next_id_++;
    watches_.emplace(id, std::make_shared<Task>(std::move(task)));
  }
  try {
    epoll_.add(fd, events, id);
  } catch (const TransportError&) {
    std::lock_guard<std::mutex> lock(mutex_);
    watches_.erase(id);
    throw;
  }
  return id;
}

void EventLoop::unwatch(uint64_t id, int fd) {
  epoll_.remove(fd);
  std::shared_ptr<Task> task;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto watch = watches_.find(id);
  if (watch != watches_.end()) {
    task = std::move(watch->second);
    watches_.erase(watch);
  }
}

void EventLoop::post(Task task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    posted_.push_back(std::move(task));
  }
  signal_.set();
}

void EventLoop::at(Clock::time_point when, Task task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    timed_.emplace(when, std::move(task));
  }
  signal_.set();
}

void EventLoop::loop() {
  for (;;) {
    const uint64_t id = epoll_.wait(milliseconds_to_next());
    if (id == kSignal) {
      signal_.clear();
    } else if (id != 0) {
      run_watch(id);
    }
    run_due();
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) {
      return;
    }
  }
}

int EventLoop::milliseconds_to_next() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!posted_.empty()) {
    return 0;
  }
  if (timed_.empty()) {
    return -1;
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(timed_.begin()->first - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

void EventLoop::run_watch(uint64_t id) {
  std::shared_ptr<Task> task;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto watch = watches_.find(id);
    if (watch != watches_.end()) {
      task = watch->second;
    }
  }
  if (task) {
    run(*task);
  }
}

void EventLoop::run(const Task& task) {
  try {
    task();
  } catch (const std::exception&) {
    ++failures_;
  }
}

void EventLoop::run_due() {
  // Run only a limited number, so that continuous posting does not starve the watches.
  Task task;
  for (int i = 0; i < 100 && take_due(task); ++i) {
    run(task);
    task = nullptr;
  }
}

bool EventLoop::take_due(Task& task) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!stopped_ && !posted_.empty()) {
    task = std::move(posted_.front());
    posted_.pop_front();
    return true;
  }
  if (!stopped_ && !timed_.empty() && timed_.begin()->first <= Clock::now()) {
    task = std::move(timed_.begin()->second);
    timed_.erase(timed_.begin());
    return true;
  }
  return false;
}

}  // namespace rpc_backends::zeromq
