#include "callback_thread.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "thread.h"

namespace rpc_backends::zeromq {

namespace {

// Unknown processes cause these tasks, so the queue is bounded.
constexpr size_t kMaxTasks = 1000;

// How long stop() waits for a running callback.
constexpr std::chrono::seconds kGracePeriod{2};

}  // namespace

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
      std::optional<int> worker;
      if (task.answer) {
        const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - task.since;
        worker = on_unknown_key(task.text, waited.count());
      } else {
        on_refused(task.text);
      }
      lock.lock();
      // Call it with the lock, so that no answer is called after stop().
      if (task.answer && !stopped) {
        task.answer(worker);
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

CallbackThread::CallbackThread(OnUnknownKey on_unknown_key, OnRefused on_refused)
    : state_(std::make_shared<State>(std::move(on_unknown_key), std::move(on_refused))) {
  if (state_->on_unknown_key || state_->on_refused) {
    thread_ = start_thread("rpc-zmq-calls", [state = state_] { state->loop(); });
  }
}

bool CallbackThread::can_look_up() const {
  return static_cast<bool>(state_->on_unknown_key);
}

bool CallbackThread::look_up(const std::string& key, Answer answer) {
  return can_look_up() && state_->add(State::Task{key, std::move(answer)});
}

void CallbackThread::report(const std::string& line) {
  if (state_->on_refused) {
    state_->add(State::Task{line, nullptr});
  }
}

void CallbackThread::stop() {
  stop_thread(thread_, *state_, kGracePeriod);
}

}  // namespace rpc_backends::zeromq
