// The functions of this header that are used here. Torch's own also reads the profiler and the pickler, which take
// the compiler 500 MB and 6 seconds.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <string>

namespace torch::distributed::rpc {

TORCH_API std::string makeRPCError(const std::string& rpcErrorStr, RPCErrorType errorType);
TORCH_API c10::intrusive_ptr<Message> createExceptionResponse(const std::string& exceptionStr, int64_t id);

}  // namespace torch::distributed::rpc
