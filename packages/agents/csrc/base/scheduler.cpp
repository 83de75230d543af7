#include "base/scheduler.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "base/log.h"

namespace rpc_backends {

namespace {

// The pause between two attempts to start a thread.
constexpr std::chrono::milliseconds kPause{50};
// The longest delay, in seconds; it keeps the clock from overflowing.
constexpr double kLongest = 1e9;

}  // namespace

void ThreadedScheduler::start() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!watching_ && !stopped_) {
    // All threads are detached: the last of them may end while the process exits. They keep this object alive.
    std::thread([self = shared_from_this()] {
      contained("in the thread of the scheduler", [&] { self->watch(); });
    }).detach();
    watching_ = true;
    ++threads_;
  }
}

Scheduler::Key ThreadedScheduler::after(double seconds, Job job) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto wait =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(seconds, kLongest)));
  const Key key{Clock::now() + wait, ++next_};
  if (stopped_) {
    return key;
  }
  due_.emplace(key, std::move(job));
  if (due_.begin()->first == key) {
    alarm_.notify_one();
  }
  return key;
}

void ThreadedScheduler::cancel(const Key& key) {
  Job dropped;  // destroyed after the lock is released
  std::lock_guard<std::mutex> lock(mutex_);
  const auto due = due_.find(key);
  if (due != due_.end()) {
    dropped = std::move(due->second);
    due_.erase(due);
  }
}

void ThreadedScheduler::post(Job job) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!stopped_) {
    post_locked(std::move(job));
  }
}

void ThreadedScheduler::post_locked(Job job) {
  posts_.push_back(std::move(job));
  if (posts_.size() <= waiting_) {
    posted_.notify_one();
  } else if (!add_worker()) {
    ++missing_;
    alarm_.notify_one();
  }
}

bool ThreadedScheduler::add_worker() {
  try {
    std::thread([self = shared_from_this()] { self->work(); }).detach();
  } catch (const std::exception&) {
    return false;
  }
  ++threads_;
  return true;
}

void ThreadedScheduler::watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopped_) {
    const auto now = Clock::now();
    while (!due_.empty() && due_.begin()->first.first <= now) {
      Job job = std::move(due_.begin()->second);
      due_.erase(due_.begin());
      post_locked(std::move(job));
    }
    while (missing_ > 0 && (posts_.empty() || add_worker())) {
      --missing_;
    }
    if (missing_ > 0) {
      lock.unlock();
      warn_seldom("scheduler", "RPC: no thread can be started for jobs that interceptors have scheduled; retrying");
      lock.lock();
      alarm_.wait_for(lock, kPause);
    } else if (due_.empty()) {
      alarm_.wait(lock, [this] { return stopped_ || missing_ > 0 || !due_.empty(); });
    } else {
      const auto next = due_.begin()->first.first;
      alarm_.wait_until(lock, next);
    }
  }
  --threads_;
  ended_.notify_all();
}

void ThreadedScheduler::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    while (!posts_.empty()) {
      Job job = std::move(posts_.front());
      posts_.pop_front();
      lock.unlock();
      contained("in a job that an interceptor has scheduled", job);
      job = nullptr;
      lock.lock();
    }
    if (stopped_) {
      break;
    }
    ++waiting_;
    posted_.wait(lock, [this] { return stopped_ || !posts_.empty(); });
    --waiting_;
  }
  --threads_;
  ended_.notify_all();
}

void ThreadedScheduler::stop(double seconds) {
  std::map<Key, Job> dropped;
  std::unique_lock<std::mutex> lock(mutex_);
  stopped_ = true;
  dropped.swap(due_);
  alarm_.notify_all();
  posted_.notify_all();
  ended_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return threads_ == 0; });
  lock.unlock();
}

}  // namespace rpc_backends
