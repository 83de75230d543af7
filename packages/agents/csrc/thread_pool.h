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

  // A request of a worker, as the pool sees it.
  struct Request {
    Job job;
    int from = -1;
    uint64_t bytes = 0;  // of its message
    bool may_be_refused = false;
    bool may_be_held = false;  // until its caller has read earlier answers
  };

  // What counts of a request that waits, beside the bytes of its message.
  static constexpr uint64_t kRequestBytes = 1024;

  struct Options {
    size_t requests;      // how many requests may run at once; further ones wait their turn
    uint64_t most_bytes;  // of the requests of one worker that wait; further ones are refused
    // Whether a worker has not read its earlier answers. Called with the lock of the pool.
    std::function<bool(int)> is_behind;
    // Called when a thread could not be started, or a request is held; retry() is to be called soon.
    std::function<void()> on_shortage;
  };

  ThreadPool(std::shared_ptr<Transport> transport, Options options);

  // `handle` is kept by the threads, and may keep what it uses. Throws std::system_error if there is no thread.
  void start(const Handle& handle);

  // Runs a request now, or when there is room for it and its caller keeps up. On a thread of the pool. Returns false,
  // and leaves `request`, if it may be refused and too many bytes of the same worker wait.
  bool run_request(Request& request);

  // Runs a job on a thread that is free, or on a new one. From any thread.
  void post(Job job);

  // Starts the threads that could not be started, and takes up the requests that were held; returns whether there are
  // such still.
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

  void add_receiver(const Handle& handle);
  // Throws std::system_error, std::bad_alloc.
  void add_thread(Job life);
  void live(const Handle& handle);
  bool is_held(const Request& request) const { return request.may_be_held && options_.is_behind(request.from); }
  bool put_off(Request& request, std::deque<Request>& where);
  void run_requests(Job job);
  Job next_request(bool& held);
  void take_up_held();
  void do_jobs();
  void bury(Threads::iterator thread);

  const std::shared_ptr<Transport> transport_;
  const Options options_;
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
  std::deque<Request> backlog_;
  std::deque<Request> held_;  // of workers that have not read their earlier answers
  std::unordered_map<int, uint64_t> backlog_bytes_;  // of both, by the worker that they are from
  Threads alive_;
  Threads dead_;
  size_t running_ = 0;
  bool stopped_ = false;
};

}  // namespace rpc_backends
