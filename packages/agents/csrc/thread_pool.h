// The threads of an agent. Each waits for an event of the transport and handles it itself: nothing is
// handed from one thread to another on the way of a message.
//
// One thread at least is always waiting, whatever the others do: a thread that takes an event while no
// other waits starts one more first. So answers arrive when all threads wait for answers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "rpc_backends_agents/transport.h"

namespace rpc_backends {

class ThreadPool : public std::enable_shared_from_this<ThreadPool> {
 public:
  using Job = std::function<void()>;

  using Handle = std::function<void(Event&)>;

  // `requests`: how many requests may run at once; further ones wait their turn.
  ThreadPool(std::shared_ptr<Transport> transport, size_t requests);

  // `handle` is kept by the threads, and may keep what it uses.
  void start(const Handle& handle);

  // Runs a request now, or when there is room for it. On a thread of the pool.
  void run_request(Job job);

  // Runs a job on a thread that is free, or on a new one. From any thread.
  void post(Job job);

  // Waits, for `seconds` at most, until all threads have ended; the transport must be closed. Threads
  // that go on beyond that are left alone.
  void stop(double seconds);

  // Whether this thread is one of a pool.
  static bool is_member();

  size_t threads() const;
  size_t waiting() const { return waiting_; }

 private:
  void add_receiver(const Handle& handle);
  void add_thread(Job life);
  void live(const Handle& handle);
  void do_jobs();
  void bury();

  const std::shared_ptr<Transport> transport_;
  const size_t requests_;
  std::atomic<size_t> waiting_{0};

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::condition_variable posted_;
  std::deque<Job> posts_;
  size_t free_ = 0;  // threads that wait for a post; one that has done its own may take a post first
  std::deque<Job> backlog_;
  std::unordered_map<std::thread::id, std::thread> alive_;
  std::vector<std::thread> dead_;
  size_t running_ = 0;
  bool stopped_ = false;
};

}  // namespace rpc_backends
