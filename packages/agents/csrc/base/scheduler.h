// Runs jobs later, on its own threads: one thread watches the time, the others run jobs that are due. Each job gets a
// thread, even if earlier jobs block theirs.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "rpc_backends_agents/interceptor.h"

namespace rpc_backends {

class ThreadedScheduler : public Scheduler, public std::enable_shared_from_this<ThreadedScheduler> {
 public:
  // Starts the thread that watches the time; the other threads start when they are needed. Jobs that were added before
  // wait until then. Throws std::system_error if the thread cannot be started.
  void start();
  Key after(double seconds, Job job) override;
  void cancel(const Key& key) override;
  void post(Job job) override;
  // Drops the jobs that are not due; waits up to `seconds` for running jobs to end.
  void stop(double seconds);

 private:
  void watch();
  void work();
  void post_locked(Job job);
  bool add_worker();

  std::mutex mutex_;
  std::condition_variable alarm_;
  std::condition_variable posted_;
  std::condition_variable ended_;
  std::map<Key, Job> due_;
  std::deque<Job> posts_;
  uint64_t next_ = 0;
  size_t threads_ = 0;
  size_t waiting_ = 0;  // threads that wait for a post
  size_t missing_ = 0;  // threads that could not be started
  bool watching_ = false;
  bool stopped_ = false;
};

}  // namespace rpc_backends
