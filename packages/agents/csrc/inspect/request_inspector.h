// Reads the properties of a request from its bytes without unpickling: its type, the types of its wrappers, the
// function that it calls, and a digest that is equal for equal requests.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>
#include <torch/csrc/distributed/rpc/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "inspect/pickled_call.h"
#include "inspect/wrapper.h"

namespace rpc_backends {

InspectedRequest inspect(const torch::distributed::rpc::Message& message);

// The name of the function that a request calls: MODULE.QUALNAME of a Python function, MODULE.CLASS.METHOD of a method
// that is called through an RRef or a RemoteModule (RRef.METHOD or RemoteModule.METHOD if the class is not known),
// torch.ops.aten.NAME of a builtin operator, or the name of a TorchScript function. Empty if there is none or it cannot
// be read.
std::string function_of(const InspectedRequest& request);
std::string function_of(const PickledCall& call);

// The RRef that a request of rpc.remote() creates, and the id of its caller's reference to it.
struct CreatedRRef {
  torch::distributed::rpc::RRefId id;
  torch::distributed::rpc::ForkId fork;
};

// Empty for other requests.
std::optional<CreatedRRef> created_rref(const InspectedRequest& request);

// Remembers which class a request gives to an RRef. Returns the RRef whose class the request asks for; its answer is
// then for learn_class(), which throws nothing.
std::optional<RRefId> watch_classes(const torch::distributed::rpc::Message& message);
void learn_class(const RRefId& rref, torch::distributed::rpc::JitFuture& answer);

// A digest of a call and its tensors. It leaves out ids of RRefs, which depend on the order of threads; messages that
// consist only of such ids have the digest 0. It reads every byte of CPU tensors. Of tensors on other devices, and of
// tensors whose storage is too small, it reads only type and size.
uint64_t digest_of(const InspectedRequest& request, const std::vector<at::Tensor>& tensors);

// A digest of every byte of the payload, and of the tensors as in digest_of().
uint64_t full_digest_of(const InspectedRequest& request, const std::vector<at::Tensor>& tensors);

// The size of a message's strided tensors in bytes, without the overhead of the wire format.
uint64_t tensor_bytes_of(const torch::distributed::rpc::Message& message);

}  // namespace rpc_backends
