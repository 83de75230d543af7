#include "agent/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "python/python_state.h"

namespace rpc_backends {

namespace {

// How many threads may wait for events, and how many for posts, in addition to those that requests need. After a burst,
// further threads end. Keeping a thread is cheaper than starting a new one.
constexpr size_t kSpare = 4;
constexpr size_t kFirst = 2;
// How long an idle thread waits for a post.
constexpr std::chrono::seconds kFreeTime{5};

// The pause between two attempts to receive from a transport that throws.
constexpr std::chrono::milliseconds kReceivePause{10};

// How long threads that compute without the GIL may go on at exit until they ask for it, sleep, and can be halted.
constexpr std::chrono::seconds kHaltTime{5};

constexpr const char* kStarting = "while starting a thread of the agent (it will be retried)";

thread_local bool is_member_ = false;

// All pools of this process.
struct Pools {
  std::mutex mutex;
  std::set<ThreadPool*> all;
};

Pools& pools() {
  static auto* const pools = new Pools;  // never destroyed: a pool may outlive the static objects
  return *pools;
}

// Removes all elements. Each is destroyed without the lock, because its destructor may take another one; this needs no
// memory, in contrast to a second queue.
template <typename Element>
void drop(std::deque<Element>& queue, std::mutex& mutex) {
  for (bool is_empty = false; !is_empty;) {
    Element dropped;
    const std::lock_guard<std::mutex> lock(mutex);
    is_empty = queue.empty();
    if (!is_empty) {
      dropped = std::move(queue.front());
      queue.pop_front();
    }
  }
}

}  // namespace

ThreadPool::ThreadPool(std::shared_ptr<Transport> transport, Options options)
    : transport_(std::move(transport)), options_(std::move(options)) {
  const std::lock_guard<std::mutex> lock(pools().mutex);
  pools().all.insert(this);
}

ThreadPool::~ThreadPool() {
  const std::lock_guard<std::mutex> lock(pools().mutex);
  pools().all.erase(this);
}

bool ThreadPool::is_member() {
  return is_member_;
}

void ThreadPool::start(const Handle& handle) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    handle_ = handle;
  }
  for (size_t i = 0; i < kFirst; ++i) {
    add_receiver(handle);
  }
}

void ThreadPool::add_receiver(const Handle& handle) {
  // Counted before it runs; otherwise two threads could both start another one.
  ++waiting_;
  try {
    add_thread([this, handle] { live(handle); });
  } catch (...) {
    --waiting_;
    throw;
  }
}

void ThreadPool::add_thread(Job life) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (std::thread& thread : dead_) {
    thread.join();
  }
  dead_.clear();
  const auto place = alive_.emplace(alive_.end());
  try {
    *place = std::thread([self = shared_from_this(), life = std::move(life), place] {
      is_member_ = true;
      pthread_setname_np(pthread_self(), "rpc-agent");
      {
        PythonState state;
        contained("in a thread of the agent", life);
      }
      self->bury(place);
    });
  } catch (...) {
    alive_.erase(place);
    throw;
  }
}

void ThreadPool::bury(Threads::iterator thread) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_abandoned_) {
    thread->detach();
    alive_.erase(thread);
  } else {
    dead_.splice(dead_.end(), alive_, thread);
  }
  ended_.notify_all();
}

void ThreadPool::live(const Handle& handle) {
  Event event;
  bool open = true;
  while (open) {
    if (!contained("while receiving", [&] { open = transport_->receive(event); })) {
      std::this_thread::sleep_for(kReceivePause);
      continue;
    }
    if (!open) {
      break;
    }
    if (waiting_.fetch_sub(1) == 1) {
      const bool added = contained(kStarting, [&] { add_receiver(handle); });
      short_ = !added;
      if (!added) {
        options_.on_shortage();
      }
    }
    contained("while handling an event", [&] { handle(event); });
    event = Event();
    if (waiting_.fetch_add(1) >= options_.requests + kSpare) {
      break;
    }
  }
  --waiting_;
}

bool ThreadPool::run_request(Request& request) {
  bool is_short = false, is_running = false, is_unwatched = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) {
      return true;  // the agent has stopped: the request is dropped
    }
    const bool held = is_held(request);
    // A running request may wait for an answer, and no other thread would receive it.
    is_short = held || (short_ && waiting_ == 0 && running_ > 0);
    if (running_ < options_.requests && !is_short) {
      ++running_;
      is_running = true;
    } else if (!put_off(request, held ? held_ : backlog_)) {
      return false;
    } else {
      is_unwatched = !std::exchange(is_watched_, true);
    }
  }
  if (is_running) {
    run_requests(std::move(request));
  } else if (is_short || is_unwatched) {
    options_.on_shortage();
  }
  return true;
}

// Call with the lock. Leaves `request` unchanged if it is refused.
bool ThreadPool::put_off(Request& request, std::deque<Request>& where) {
  uint64_t& waiting = backlog_bytes_[request.from];
  const uint64_t bytes = request.bytes + kRequestBytes;
  if (request.may_be_refused && waiting > 0 && waiting + bytes > options_.most_bytes) {
    return false;
  }
  request.since = std::chrono::steady_clock::now();
  where.push_back(std::move(request));
  waiting += bytes;
  return true;
}

// Lists a request that is on the stack of its thread, as long as it is there.
class ThreadPool::Entry {
 public:
  Entry(ThreadPool& pool, const Request& request) : pool_(pool), entry_{&request}, place_(entry_.begin()) {
    const std::lock_guard<std::mutex> lock(pool_.mutex_);
    pool_.running_requests_.splice(pool_.running_requests_.end(), entry_);
  }
  ~Entry() {
    const std::lock_guard<std::mutex> lock(pool_.mutex_);
    entry_.splice(entry_.end(), pool_.running_requests_, place_);
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

 private:
  ThreadPool& pool_;
  std::list<const Request*> entry_;
  const std::list<const Request*>::iterator place_;
};

// Runs a request that is already counted as running, and then the waiting ones.
void ThreadPool::run_requests(Request request) {
  const Entry entry(*this, request);
  while (request.job) {
    contained("while running a request", request.job);
    Request ended;  // destroyed without the lock
    bool held = false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ended = std::exchange(request, next_request(held));
      if (!request.job) {
        --running_;
      }
    }
    if (held) {
      options_.on_shortage();
    }
  }
}

// Call with the lock. Returns a request without a job if none can run. Sets `held` if it has put requests in held_.
ThreadPool::Request ThreadPool::next_request(bool& held) {
  while (!backlog_.empty() && !stopped_) {
    Request next = std::move(backlog_.front());
    backlog_.pop_front();
    if (is_held(next)) {
      held_.push_back(std::move(next));
      held = true;
      continue;
    }
    const auto waiting = backlog_bytes_.find(next.from);
    waiting->second -= next.bytes + kRequestBytes;
    if (waiting->second == 0) {
      backlog_bytes_.erase(waiting);
    }
    return next;
  }
  return {};
}

// Call with the lock.
void ThreadPool::take_up_held() {
  std::deque<Request> held;
  held.swap(held_);
  for (Request& request : held) {
    const bool is_still_held = is_held(request);
    request.since = std::chrono::steady_clock::now();  // until now it has waited for its caller, not for a thread
    (is_still_held ? held_ : backlog_).push_back(std::move(request));
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
  if (!contained(kStarting, [this] { add_thread([this] { do_jobs(); }); })) {
    options_.on_shortage();
  }
}

void ThreadPool::do_jobs() {
  std::unique_lock<std::mutex> lock(mutex_);
  ++doing_;
  while (!posts_.empty() && !stopped_) {
    Job job = std::move(posts_.front());
    posts_.pop_front();
    lock.unlock();
    contained("in work that was put off", job);
    job = nullptr;
    lock.lock();
    if (!posts_.empty() || stopped_) {
      continue;
    }
    if (free_ >= options_.requests + kSpare) {
      break;
    }
    ++free_;
    posted_.wait_for(lock, kFreeTime, [this] { return !posts_.empty() || stopped_; });
    --free_;
  }
  --doing_;
}

bool ThreadPool::retry() {
  Handle handle;
  bool wants_receiver = false, wants_doer = false, still_held = false, still_waiting = false;
  size_t wanted_runners = 0;
  const auto look = [&](bool starts_runners) {
    std::lock_guard<std::mutex> lock(mutex_);
    handle = handle_;
    wants_receiver = !stopped_ && short_ && waiting_ == 0;
    take_up_held();
    const size_t places = running_ < options_.requests ? options_.requests - running_ : 0;
    wanted_runners = stopped_ ? 0 : std::min(places, backlog_.size());
    running_ += starts_runners ? wanted_runners : 0;
    still_held = !held_.empty();
    still_waiting = !stopped_ && !backlog_.empty();
    is_watched_ = still_waiting || still_held;
    wants_doer = !stopped_ && !posts_.empty();
  };
  look(true);
  const size_t runners = wanted_runners;
  if (wants_receiver) {
    contained(kStarting, [&] {
      add_receiver(handle);
      short_ = false;
    });
  }
  for (size_t started = 0; started < runners; ++started) {
    const auto run_waiting = [this] {
      Request nothing;
      nothing.job = [] {};
      run_requests(std::move(nothing));
    };
    if (!contained(kStarting, [&] { add_thread(run_waiting); })) {
      std::lock_guard<std::mutex> lock(mutex_);
      running_ -= runners - started;
      break;
    }
  }
  if (wants_doer && !contained(kStarting, [&] { add_thread([this] { do_jobs(); }); })) {
    Job job;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (doing_ == 0 && !posts_.empty()) {  // no other thread will run it
        job = std::move(posts_.front());
        posts_.pop_front();
      }
    }
    if (job) {
      contained("in work that was put off", job);
    }
  }
  look(false);
  return wants_receiver || wanted_runners > 0 || wants_doer || still_held || still_waiting;
}

std::optional<ThreadPool::Full> ThreadPool::full() {
  const auto now = std::chrono::steady_clock::now();
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopped_ || backlog_.empty() || running_ < options_.requests || now < next_full_ ||
      now - backlog_.front().since < kLongWait) {
    return std::nullopt;
  }
  next_full_ = now + kFullPause;
  Full full{backlog_.size(), std::chrono::duration_cast<std::chrono::seconds>(now - backlog_.front().since), {}};
  for (const Request* const request : running_requests_) {
    if (request->job) {  // it has not just ended
      ++full.running[request->name ? request->name() : std::string()];
    }
  }
  return full;
}

size_t ThreadPool::queued() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return backlog_.size() + held_.size();
}

size_t ThreadPool::threads() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return alive_.size();
}

bool ThreadPool::drain(double seconds) {
  Handle handle;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
    handle.swap(handle_);
    posted_.notify_all();
  }
  drop(backlog_, mutex_);
  drop(held_, mutex_);
  drop(posts_, mutex_);
  std::unique_lock<std::mutex> lock(mutex_);
  size_t self = 0;
  for (const std::thread& thread : alive_) {
    self += thread.get_id() == std::this_thread::get_id() ? 1 : 0;
  }
  return ended_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return alive_.size() <= self; });
}

void ThreadPool::stop(double seconds) {
  drain(seconds);
  std::lock_guard<std::mutex> lock(mutex_);
  for (std::thread& thread : dead_) {
    thread.join();
  }
  dead_.clear();
  is_abandoned_ = true;
}

void ThreadPool::raise_system_exit() {
  const PyGILState_STATE gil = PyGILState_Ensure();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (std::thread& thread : alive_) {
      PyThreadState_SetAsyncExc(thread.native_handle(), PyExc_SystemExit);
    }
  }
  PyGILState_Release(gil);
}

void ThreadPool::stop_all(double seconds) {
  std::vector<std::shared_ptr<ThreadPool>> living;
  {
    const std::lock_guard<std::mutex> lock(pools().mutex);
    for (ThreadPool* const pool : pools().all) {
      if (auto kept = pool->weak_from_this().lock(); kept && !pool->birthplace_.is_elsewhere()) {
        living.push_back(std::move(kept));
      }
    }
  }
  for (const auto& pool : living) {
    contained("while closing the transport at exit", [&] { pool->transport_->close(0); });
  }
  for (const auto& pool : living) {
    if (!pool->drain(seconds)) {
      pool->raise_system_exit();
      pool->drain(seconds / 2);
    }
  }
  const PyGILState_STATE gil = PyGILState_Ensure();
  PythonState::halt_others(kHaltTime);
  // A thread may have been halted while it waited for the GIL, after it had asked this thread to give it up. Then
  // CPython lets this thread go on only when another thread has had the GIL.
  std::thread next;
  contained("while ending threads at exit",
            [&] { next = std::thread([] { PyGILState_Release(PyGILState_Ensure()); }); });
  PyGILState_Release(gil);
  if (next.joinable()) {
    next.join();
  }
}

}  // namespace rpc_backends
