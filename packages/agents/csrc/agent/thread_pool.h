// The threads of an agent. Each thread waits for an event of the transport and handles the event itself, so no message
// is passed from one thread to another.
//
// At least one thread is always waiting for events: if no other thread waits, a thread that has taken an event starts
// one before it handles the event. So answers are received even if all other threads wait for answers.
//
// If the system cannot start a thread, requests queue behind the running ones, so that answers are still received, and
// retry() tries again.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>

#include "rpc_backends_agents/forks.h"
#include "rpc_backends_agents/transport.h"

namespace rpc_backends {

class ThreadPool : public std::enable_shared_from_this<ThreadPool> {
 public:
  using Job = std::function<void()>;

  using Handle = std::function<void(Event&)>;

  // A request from a worker.
  struct Request {
    Job job;
    int from = -1;
    uint64_t bytes = 0;  // of its message
    bool may_be_refused = false;
    bool may_be_held = false;                     // until its caller has read earlier answers
    std::function<std::string()> name;            // returns what runs; called with the lock of the pool
    std::chrono::steady_clock::time_point since;  // when it began to wait for a thread
  };

  // A pool whose threads are all taken, while requests wait.
  struct Full {
    size_t waiting = 0;
    std::chrono::seconds longest{0};        // how long the first of these has waited
    std::map<std::string, size_t> running;  // the names of the running requests, and how many have each
  };

  // What a waiting request counts in addition to the bytes of its message.
  static constexpr uint64_t kRequestBytes = 1024;

  static constexpr std::chrono::seconds kLongWait{5};
  static constexpr std::chrono::seconds kFullPause{60};

  struct Options {
    size_t requests;      // how many requests may run at the same time; further ones wait
    uint64_t most_bytes;  // limit on the bytes of waiting requests from one worker; further ones are refused
    // Returns whether a worker has not read its earlier answers. Called with the lock of the pool.
    std::function<bool(int)> is_behind;
    // Called when a thread could not be started, or a request is held or waits; retry() must be called soon.
    std::function<void()> on_shortage;
  };

  ThreadPool(std::shared_ptr<Transport> transport, Options options);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // The threads keep copies of `handle`, which may own the objects that it uses. Throws std::system_error if no thread
  // can be started.
  void start(const Handle& handle);

  // Runs a request now, or later when fewer requests run and its caller has read its answers. Call it on a thread of
  // the pool. Returns false and leaves `request` unchanged if it may be refused and too many bytes from the same worker
  // wait.
  bool run_request(Request& request);

  // Runs a job on an idle or a new thread. May be called on any thread.
  void post(Job job);

  // Tries again to start missing threads and to run held requests; returns whether any are left, or requests wait.
  bool retry();

  // Returns how the threads are taken if a request has waited for kLongWait; at most once in kFullPause.
  std::optional<Full> full();

  // Waits up to `seconds` until all threads have ended; the transport must be closed. Only stop_all() waits for threads
  // that still run afterwards.
  void stop(double seconds);

  // Closes the transports of all pools of this process, and waits up to `seconds` for their threads. Those that still
  // run get SystemExit in their Python code, and half as long again. Then they are halted; see
  // PythonState::halt_others(). Call it without the GIL before the interpreter ends.
  static void stop_all(double seconds);

  // Whether this thread belongs to a pool.
  static bool is_member();

  size_t threads() const;
  size_t waiting() const { return waiting_; }
  // Requests that have arrived and wait for a thread, or for their caller to read earlier answers.
  size_t queued() const;

 private:
  using Threads = std::list<std::thread>;
  class Entry;

  void add_receiver(const Handle& handle);
  // Throws std::system_error, std::bad_alloc.
  void add_thread(Job life);
  void live(const Handle& handle);
  bool is_held(const Request& request) const { return request.may_be_held && options_.is_behind(request.from); }
  bool put_off(Request& request, std::deque<Request>& where);
  void run_requests(Request request);
  Request next_request(bool& held);
  void take_up_held();
  void do_jobs();
  void bury(Threads::iterator thread);
  // Starts no more work, and returns whether all threads except this one end in time.
  bool drain(double seconds);
  void raise_system_exit();

  const Birthplace birthplace_;
  const std::shared_ptr<Transport> transport_;
  const Options options_;
  std::atomic<size_t> waiting_{0};
  // Whether no thread could be started to replace one that handles an event.
  std::atomic<bool> short_{false};

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::condition_variable posted_;
  Handle handle_;
  std::deque<Job> posts_;
  size_t free_ = 0;   // threads that wait for a post; another thread may take the post first
  size_t doing_ = 0;  // threads that run posts or wait for one
  std::deque<Request> backlog_;
  std::deque<Request> held_;                         // requests from workers that have not read their earlier answers
  std::unordered_map<int, uint64_t> backlog_bytes_;  // bytes of backlog_ and held_, by sender
  Threads alive_;
  Threads dead_;
  size_t running_ = 0;
  std::list<const Request*> running_requests_;  // on the stacks of their threads
  bool is_watched_ = false;                     // whether retry() will be called because of backlog_
  std::chrono::steady_clock::time_point next_full_;
  bool stopped_ = false;
  bool is_abandoned_ = false;  // threads detach themselves at their end, because they are not joined
};

}  // namespace rpc_backends
