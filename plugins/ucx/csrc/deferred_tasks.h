// Tasks for later, when no callback of UCX runs: such a callback must not throw, and must not end links. Needs the
// transport's lock.
#pragma once

#include <deque>
#include <functional>
#include <utility>

namespace rpc_backends::ucx {

class DeferredTasks {
 public:
  // Throws std::bad_alloc; a callback of UCX then uses LinkTable::mark_broken().
  void add(std::function<void()> task) { tasks_.push_back(std::move(task)); }

  // Runs all, also those that are added meanwhile; returns whether there was any.
  bool run() {
    bool any = false;
    while (!tasks_.empty()) {
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      task();
      any = true;
    }
    return any;
  }

 private:
  std::deque<std::function<void()>> tasks_;
};

}  // namespace rpc_backends::ucx
