#include "python_state.h"

namespace rpc_backends {

thread_local PythonState* PythonState::current_ = nullptr;

void PythonState::keep() {
  PythonState* const self = current_;
  if (self == nullptr || self->state_ != nullptr || Py_IsInitialized() == 0 ||
      PyGILState_GetThisThreadState() != nullptr) {
    return;
  }
  PyGILState_Ensure();
  self->state_ = PyEval_SaveThread();
}

PythonState::~PythonState() {
  current_ = nullptr;
  // After the interpreter has ended there is nothing to release.
  if (state_ != nullptr && Py_IsInitialized() != 0) {
    PyEval_RestoreThread(state_);
    PyGILState_Release(PyGILState_UNLOCKED);
  }
}

}  // namespace rpc_backends
