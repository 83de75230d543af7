// Helpers to start and stop the transport's threads.
#pragma once

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>
#include <utility>

namespace rpc_backends {

// Starts a thread with all signals blocked, so that the program's own threads handle them.
template <typename Life>
std::thread start_thread(const char* name, Life life) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  struct Restore {
    const sigset_t& mask;
    ~Restore() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
  } restore{before};
  std::thread thread(std::move(life));
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

// Stops the thread that runs on `state`, and waits at most `seconds` for its end. If it hangs in a callback, it is
// detached. The state needs a mutex, a condition variable `changed`, and the flags `stopped` and `ended`.
template <typename State>
void stop_thread(std::thread& thread, State& state, std::chrono::seconds seconds) {
  std::unique_lock<std::mutex> lock(state.mutex);
  state.stopped = true;
  state.changed.notify_all();
  if (!thread.joinable()) {
    return;
  }
  // The thread may call this itself, from a callback.
  const bool is_this_thread = thread.get_id() == std::this_thread::get_id();
  const bool ended = !is_this_thread && state.changed.wait_for(lock, seconds, [&state] { return state.ended; });
  lock.unlock();
  if (ended) {
    thread.join();
  } else {
    thread.detach();
  }
}

}  // namespace rpc_backends
