// Kinds of torch's messages that the agent treats differently.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <cstdint>

namespace rpc_backends {

using torch::distributed::rpc::MessageType;

// Requests that a program makes, in any number. Torch's own requests follow from these, are small, and some are sent in
// places where waiting is not possible.
inline bool is_of_a_program(int32_t type) {
  return type == MessageType::SCRIPT_CALL || type == MessageType::PYTHON_CALL ||
         type == MessageType::SCRIPT_REMOTE_CALL || type == MessageType::PYTHON_REMOTE_CALL ||
         type == MessageType::FORWARD_AUTOGRAD_REQ || type == MessageType::RUN_WITH_PROFILING_REQ;
}

// Requests that torch retries, on a thread of its own, when they fail. When the last attempt has failed, RRefContext
// throws. If torch gets a future that has already failed, RRefContext throws on torch's thread, and that ends the
// process. So the agent fails the future a little later, on one of its own threads.
inline bool is_retried_by_torch(int32_t type) {
  return type == MessageType::RREF_USER_DELETE || type == MessageType::RREF_FORK_REQUEST ||
         type == MessageType::RREF_CHILD_ACCEPT || type == MessageType::CLEANUP_AUTOGRAD_CONTEXT_REQ;
}

// torch's own requests whose answers may be large.
inline bool is_fetch(int32_t type) {
  return type == MessageType::SCRIPT_RREF_FETCH_CALL || type == MessageType::PYTHON_RREF_FETCH_CALL;
}

// Requests whose answers are values for the program.
inline bool has_result(int32_t type) {
  return is_of_a_program(type) || is_fetch(type);
}

// Messages for which torch takes the GIL.
inline bool is_python(int32_t type) {
  return type == MessageType::PYTHON_CALL || type == MessageType::PYTHON_REMOTE_CALL ||
         type == MessageType::PYTHON_RREF_FETCH_CALL || type == MessageType::PYTHON_RET ||
         type == MessageType::PYTHON_RREF_FETCH_RET;
}

}  // namespace rpc_backends
