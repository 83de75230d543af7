// Keeps the Python thread state of an agent's thread from one message to the next, and halts the threads that still run
// when the interpreter ends.
//
// A thread that Python did not create gets a new thread state each time it takes the GIL, and loses it together with
// its stack memory when it releases the GIL. That costs three system calls and three page faults each time, and torch
// takes the GIL up to three times per call.
#pragma once

#include <Python.h>
#include <sys/types.h>

#include <chrono>

namespace rpc_backends {

// A thread has one on its stack as long as it lives; code that runs on the thread calls keep().
class PythonState {
 public:
  PythonState();
  ~PythonState();

  PythonState(const PythonState&) = delete;
  PythonState& operator=(const PythonState&) = delete;

  // Makes this thread keep its state from now on, if it has a PythonState. Takes the GIL on the first call only.
  static void keep();

  // Halts, for ever, the threads that have a PythonState and sleep in the system, until none is left or `limit` is
  // over. Call it with the GIL, when the interpreter is about to end: Python before 3.14 ends a thread that asks for
  // the GIL later, and in torch's C++ that aborts the process. A thread that computes without the GIL is not halted,
  // because it may hold a lock of the allocator.
  static void halt_others(std::chrono::milliseconds limit);

 private:
  static thread_local PythonState* current_;

  PyThreadState* state_ = nullptr;
  const pid_t thread_;
};

}  // namespace rpc_backends
