// The thread that runs the owner's callbacks. They may block there, for example on Python's GIL or on a store,
// without blocking the rest of the transport.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "rpc_backends_agents/threads.h"

namespace rpc_backends {

class CallbackThread {
 public:
  // Returns the worker that has this key, or nullopt. `waited`: seconds since the lookup was requested.
  using OnUnknownKey = std::function<std::optional<int>(const std::string& key, double waited)>;
  // Logs a line.
  using OnRefused = std::function<void(const std::string& line)>;
  using Answer = std::function<void(std::optional<int>)>;

  // Either callback may be empty. `name`: of the thread, at most 15 characters.
  CallbackThread(const char* name, OnUnknownKey on_unknown_key, OnRefused on_refused);
  ~CallbackThread() { stop(); }

  bool can_look_up() const;

  // Returns false if the queue is full. Otherwise `answer` is called on this thread; it must not block. If it throws
  // std::bad_alloc, nothing more happens: the asker needs a time limit.
  bool look_up(const std::string& key, Answer answer);

  // Drops the line if the queue is full.
  void report(const std::string& line);

  // Drops queued tasks and waits a grace period for a running callback. A callback that does not return keeps its
  // thread, and its answer is dropped.
  void stop();

 private:
  // Unknown processes cause these tasks, so the queue is bounded.
  static constexpr size_t kMaxTasks = 1000;
  // How long stop() waits for a running callback.
  static constexpr std::chrono::seconds kGracePeriod{2};

  struct State;

  // Shared with the thread, which may outlive this object.
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

struct CallbackThread::State {
  State(OnUnknownKey asked, OnRefused told) : on_unknown_key(std::move(asked)), on_refused(std::move(told)) {}

  // A lookup, or a line to log if there is no `answer`.
  struct Task {
    std::string text;
    Answer answer;
    std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
  };

  bool add(Task task) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (stopped || tasks.size() >= kMaxTasks) {
        return false;
      }
      tasks.push_back(std::move(task));
    }
    changed.notify_all();
    return true;
  }

  // Returns the worker that was looked up. If memory is short, that is none, or the line is dropped.
  std::optional<int> run(const Task& task) const {
    try {
      if (task.answer) {
        const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - task.since;
        return on_unknown_key(task.text, waited.count());
      }
      on_refused(task.text);
    } catch (const std::bad_alloc&) {  // must not end the process
    }
    return std::nullopt;
  }

  void loop() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return stopped || !tasks.empty(); });
      if (stopped) {
        break;
      }
      const Task task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      const std::optional<int> worker = run(task);
      lock.lock();
      // Call it with the lock, so that no answer is called after stop().
      if (task.answer && !stopped) {
        try {
          task.answer(worker);
        } catch (const std::bad_alloc&) {  // must not end the process
        }
      }
    }
    ended = true;
    changed.notify_all();
  }

  const OnUnknownKey on_unknown_key;
  const OnRefused on_refused;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Task> tasks;
  bool stopped = false;
  bool ended = false;
};

inline CallbackThread::CallbackThread(const char* name, OnUnknownKey on_unknown_key, OnRefused on_refused)
    : state_(std::make_shared<State>(std::move(on_unknown_key), std::move(on_refused))) {
  if (state_->on_unknown_key || state_->on_refused) {
    thread_ = start_thread(name, [state = state_] { state->loop(); });
  }
}

inline bool CallbackThread::can_look_up() const {
  return static_cast<bool>(state_->on_unknown_key);
}

inline bool CallbackThread::look_up(const std::string& key, Answer answer) {
  return can_look_up() && state_->add(State::Task{key, std::move(answer)});
}

inline void CallbackThread::report(const std::string& line) {
  if (state_->on_refused) {
    state_->add(State::Task{line, nullptr});
  }
}

inline void CallbackThread::stop() {
  stop_thread(thread_, *state_, kGracePeriod);
}

}  // namespace rpc_backends
