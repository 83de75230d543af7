// The functions of torch's header that are used here. Torch's own header also includes the profiler and the pickler,
// which cost the compiler 500 MB and 6 seconds.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <string>

namespace torch::distributed::rpc {

TORCH_API RPCErrorType getRPCErrorType(const JitFuture& jitFuture);
TORCH_API std::string makeRPCError(const std::string& rpcErrorStr, RPCErrorType errorType);
TORCH_API c10::intrusive_ptr<Message> createExceptionResponse(const std::string& exceptionStr, int64_t id);

}  // namespace torch::distributed::rpc
