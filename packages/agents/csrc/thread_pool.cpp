#include "thread_pool.h"

#include <pthread.h>

#include <chrono>
#include <thread>
#include <utility>

#include "python_state.h"

namespace rpc_backends {

namespace {

// Threads that wait, beyond those that the requests need, until further ones end: a burst has passed. A
// thread costs more to make than to keep.
constexpr size_t kSpare = 4;
constexpr size_t kFirst = 2;
// How long a thread that is free waits for a post.
constexpr std::chrono::seconds kFreeTime{5};

thread_local bool is_member_ = false;

}  // namespace

ThreadPool::ThreadPool(std::shared_ptr<Transport> transport, size_t requests)
    : transport_(std::move(transport)), requests_(requests) {}

bool ThreadPool::is_member() {
  return is_member_;
}

void ThreadPool::start(const Handle& handle) {
  for (size_t i = 0; i < kFirst; ++i) {
    add_receiver(handle);
  }
}

void ThreadPool::add_receiver(const Handle& handle) {
  // Counted before it runs, so that two threads do not both take themselves for the last.
  ++waiting_;
  add_thread([this, handle] { live(handle); });
}

void ThreadPool::add_thread(Job life) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (std::thread& thread : dead_) {
    thread.join();
  }
  dead_.clear();
  std::thread thread([self = shared_from_this(), life = std::move(life)] {
    is_member_ = true;
    pthread_setname_np(pthread_self(), "rpc-agent");
    {
      PythonState state;
      life();
    }
    self->bury();
  });
  const auto id = thread.get_id();
  alive_.emplace(id, std::move(thread));
}

void ThreadPool::bury() {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto self = alive_.find(std::this_thread::get_id());
  if (self->second.joinable()) {  // stop() has detached those that it left alone
    dead_.push_back(std::move(self->second));
  }
  alive_.erase(self);
  ended_.notify_all();
}

void ThreadPool::live(const Handle& handle) {
  Event event;
  while (transport_->receive(event)) {
    if (waiting_.fetch_sub(1) == 1) {
      add_receiver(handle);
    }
    handle(event);
    event = Event();
    if (waiting_.fetch_add(1) >= requests_ + kSpare) {
      break;
    }
  }
  --waiting_;
}

void ThreadPool::run_request(Job job) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) {
      return;  // nobody waits for an answer, and nobody would take it out again
    }
    if (running_ >= requests_) {
      backlog_.push_back(std::move(job));
      return;
    }
    ++running_;
  }
  while (job) {
    job();
    std::lock_guard<std::mutex> lock(mutex_);
    if (backlog_.empty() || stopped_) {
      --running_;
      job = nullptr;
    } else {
      job = std::move(backlog_.front());
      backlog_.pop_front();
    }
  }
}

void ThreadPool::post(Job job) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) {
      return;
    }
    posts_.push_back(std::move(job));
    if (posts_.size() <= free_) {
      posted_.notify_one();
      return;
    }
  }
  add_thread([this] { do_jobs(); });
}

void ThreadPool::do_jobs() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!posts_.empty()) {
    Job job = std::move(posts_.front());
    posts_.pop_front();
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
    if (!posts_.empty() || stopped_) {
      continue;
    }
    ++free_;
    posted_.wait_for(lock, kFreeTime, [this] { return !posts_.empty() || stopped_; });
    --free_;
  }
}

size_t ThreadPool::threads() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return alive_.size();
}

void ThreadPool::stop(double seconds) {
  std::deque<Job> dropped[2];  // without the lock: what they hold may need another
  std::unique_lock<std::mutex> lock(mutex_);
  stopped_ = true;
  dropped[0].swap(backlog_);
  dropped[1].swap(posts_);
  posted_.notify_all();
  const size_t self = alive_.count(std::this_thread::get_id());
  ended_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return alive_.size() <= self; });
  for (std::thread& thread : dead_) {
    thread.join();
  }
  dead_.clear();
  for (auto& [id, thread] : alive_) {
    thread.detach();
  }
}

}  // namespace rpc_backends
