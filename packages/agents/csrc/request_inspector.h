// What a request is, read from its bytes without running any of it: its type, and that of what it wraps, the
// function it calls, and a digest that two requests share if they ask for the same.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rpc_backends {

// A request without the wrappers that torch puts around it for autograd and profiling.
struct InspectedRequest {
  int32_t type = 0;
  std::vector<int32_t> wrappers;  // the outermost first
  std::string_view payload;       // in the message's own memory
};

InspectedRequest inspect(const torch::distributed::rpc::Message& message);

// The qualified name of what a call calls: MODULE.QUALNAME of a Python function, torch.ops.aten.NAME of a builtin
// operator, the name of a TorchScript function. Empty if it has none, or none that can be read.
std::string function_of(const InspectedRequest& request);

// The digest of a call and of its tensors, less what torch numbers in the order in which threads come by (ids of
// RRefs); 0 for messages that consist of such numbers. It reads every byte of tensors on the CPU; of tensors
// elsewhere, and of those whose storage is too small for them, type and size alone.
uint64_t digest_of(const InspectedRequest& request, const std::vector<at::Tensor>& tensors);

// The digest of every byte of the payload, and of the tensors.
uint64_t full_digest_of(const InspectedRequest& request, const std::vector<at::Tensor>& tensors);

// The bytes of a message's tensors, less the wire's own.
uint64_t tensor_bytes_of(const torch::distributed::rpc::Message& message);

}  // namespace rpc_backends
