// The event loop of the transport: one thread that waits for file descriptors and timers.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "inbox.h"
#include "rpc_backends_agents/fd.h"

namespace rpc_backends::zeromq {

// All tasks run on the loop's thread, one at a time, and must not block. An exception ends only the task that threw
// it.
class EventLoop {
 public:
  using Task = std::function<void()>;

  explicit EventLoop(const char* thread_name = "rpc-zmq-events");
  ~EventLoop() { stop(); }

  // Runs `task` whenever epoll reports `events` for `fd`, until unwatch(). Returns the id of the watch. Throws
  // TransportError.
  uint64_t watch(int fd, Task task, uint32_t events = EPOLLIN);
  void unwatch(uint64_t id, int fd);

  void post(Task task);
  void at(Clock::time_point when, Task task);

  // The number of tasks that threw.
  uint64_t failures() const { return failures_; }

  // Ends the thread. Tasks that are still queued never run.
  void stop();

 private:
  void loop();
  void run(const Task& task);
  int milliseconds_to_next();
  void run_watch(uint64_t id);
  void run_due();
  bool take_due(Task& task);

  Epoll epoll_;
  Signal signal_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<Task>> watches_;
  std::deque<Task> posted_;
  std::multimap<Clock::time_point, Task> timed_;
  uint64_t next_id_ = 2;
  bool stopped_ = false;
  std::atomic<uint64_t> failures_{0};
  std::thread thread_;
};

}  // namespace rpc_backends::zeromq
