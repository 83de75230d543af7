// Keeps the Python thread state of an agent's thread from one message to the next.
//
// A thread that Python did not create gets a new thread state each time it takes the GIL, and loses it together with its
// stack memory when it releases the GIL. That costs three system calls and three page faults each time, and torch takes
// the GIL up to three times per call.
#pragma once

#include <Python.h>

namespace rpc_backends {

// A thread has one on its stack as long as it lives; code that runs on the thread calls keep().
class PythonState {
 public:
  PythonState() { current_ = this; }
  ~PythonState();

  PythonState(const PythonState&) = delete;
  PythonState& operator=(const PythonState&) = delete;

  // Makes this thread keep its state from now on, if it has a PythonState. Takes the GIL on the first call only.
  static void keep();

 private:
  static thread_local PythonState* current_;

  PyThreadState* state_ = nullptr;
};

}  // namespace rpc_backends
