// Python's state of a thread of the agent, kept from one message to the next.
//
// A thread that Python has not made gets a state each time it takes the GIL and loses it when it gives the
// GIL back, with the memory of its stack: three system calls and three page faults each time, and torch
// takes the GIL up to three times for a call.
#pragma once

#include <Python.h>

namespace rpc_backends {

// For a thread to have on its stack while it lives; keep() is called by what runs there.
class PythonState {
 public:
  PythonState() { current_ = this; }
  ~PythonState();

  PythonState(const PythonState&) = delete;
  PythonState& operator=(const PythonState&) = delete;

  // Has this thread keep its state from now on, if it is one that can. Takes the GIL, the first time only.
  static void keep();

 private:
  static thread_local PythonState* current_;

  PyThreadState* state_ = nullptr;
};

// Lets go of the GIL while it lives, if this thread has it: nobody waits for a thread that needs it.
class WithoutGil {
 public:
  WithoutGil() : state_(Py_IsInitialized() != 0 && PyGILState_Check() == 1 ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (state_ != nullptr) {
      PyEval_RestoreThread(state_);
    }
  }

  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const state_;
};

}  // namespace rpc_backends
