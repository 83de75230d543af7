// Runs functions at given times, on a thread that waits in receive(). Needs the transport's lock.
#pragma once

#include <sys/timerfd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "rpc_backends_agents/fd.h"
#include "settings.h"

namespace rpc_backends::ucx {

class Timers {
 public:
  Timers() : fd_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {}

  int fd() const { return fd_.get(); }

  void at(Clock::time_point when, std::function<void()> task) {
    const bool is_first = tasks_.empty() || when < tasks_.begin()->first;
    tasks_.emplace(when, std::move(task));
    if (is_first) {
      set();
    }
  }

  // Runs what is due. Call it when the descriptor is readable.
  void run() {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t taken = ::read(fd_.get(), &count, sizeof count);
    struct Set {
      Timers& timers;
      ~Set() { timers.set(); }  // also if a task throws
    } const set_next{*this};
    const auto now = Clock::now();
    while (!tasks_.empty() && tasks_.begin()->first <= now) {
      const std::function<void()> task = std::move(tasks_.begin()->second);
      tasks_.erase(tasks_.begin());
      task();
    }
  }

 private:
  void set() {
    itimerspec time{};
    if (!tasks_.empty()) {
      // steady_clock is CLOCK_MONOTONIC on Linux.
      const auto when = std::chrono::duration_cast<std::chrono::nanoseconds>(tasks_.begin()->first.time_since_epoch());
      time.it_value.tv_sec = when.count() / 1000000000;
      time.it_value.tv_nsec = std::max<int64_t>(when.count() % 1000000000, 1);
    }
    timerfd_settime(fd_.get(), TFD_TIMER_ABSTIME, &time, nullptr);
  }

  Fd fd_;
  std::multimap<Clock::time_point, std::function<void()>> tasks_;
};

}  // namespace rpc_backends::ucx
