// The threads of an agent. Each waits for an event of the transport and handles it itself: nothing is
// handed from one thread to another on the way of a message.
//
// One thread at least is always waiting, whatever the others do: a thread that takes an event while no
// other waits starts one more first. So answers arrive when all threads wait for answers.
//
// Where the system has no thread to give, requests wait behind those that run, so that answers are taken still,
// and retry() tries again.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "rpc_backends_agents/transport.h"

namespace rpc_backends {

class ThreadPool : public std::enable_shared_from_this<ThreadPool> {
 public:
  using Job = std::function<void()>;

  using Handle = std::function<void(Event&)>;

  // What counts of a request that waits, beside the bytes of its message.
  static constexpr uint64_t kRequestBytes = 1024;

  // `requests`: how many requests may run at once; further ones wait their turn.
  // `on_shortage`: called when a thread could not be started; retry() is to be called soon.
  ThreadPool(std::shared_ptr<Transport> transport, size_t requests, std::function<void()> on_shortage);

  // `handle` is kept by the threads, and may keep what it uses. Throws std::system_error if there is no thread.
  void start(const Handle& handle);

  // Runs a request now, or when there is room for it. On a thread of the pool. Returns false, and does nothing, if
  // with its `bytes` more than `most` bytes `from` the same worker would wait.
  bool run_request(Job job, int from, uint64_t bytes, uint64_t most);

  // Runs a job on a thread that is free, or on a new one. From any thread.
  void post(Job job);

  // Starts the threads that could not be started, and returns whether there are such still.
  bool retry();

  // Waits, for `seconds` at most, until all threads have ended; the transport must be closed. Threads
  // that go on beyond that are left alone.
  void stop(double seconds);

  // Whether this thread is one of a pool.
  static bool is_member();

  size_t threads() const;
  size_t waiting() const { return waiting_; }

 private:
  using Threads = std::list<std::thread>;

  struct Waiting {
    Job job;
    int from = -1;
    uint64_t bytes = 0;
  };

  void add_receiver(const Handle& handle);
  // Throws std::system_error, std::bad_alloc.
  void add_thread(Job life);
  void live(const Handle& handle);
  bool put_off(Job&& job, int from, uint64_t bytes, uint64_t most);
  void run_requests(Job job);
  void do_jobs();
  void bury(Threads::iterator thread);

  const std::shared_ptr<Transport> transport_;
  const size_t requests_;
  const std::function<void()> on_shortage_;
  std::atomic<size_t> waiting_{0};
  // No thread could be started to wait in place of one that handles an event.
  std::atomic<bool> short_{false};

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::condition_variable posted_;
  Handle handle_;
  std::deque<Job> posts_;
  size_t free_ = 0;   // threads that wait for a post; one that has done its own may take a post first
  size_t doing_ = 0;  // threads that do posts, or wait for one
  std::deque<Waiting> backlog_;
  std::unordered_map<int, uint64_t> backlog_bytes_;  // by the worker that they are from
  Threads alive_;
  Threads dead_;
  size_t running_ = 0;
  bool stopped_ = false;
};

}  // namespace rpc_backends
