// The threads of a transport.
#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace rpc_backends::zeromq {

// Starts a thread that no signal interrupts: those are for the program's own.
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

}  // namespace rpc_backends::zeromq
