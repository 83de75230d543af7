// The futures of calls: how they get their values and errors.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <chrono>
#include <string>
#include <vector>

namespace rpc_backends {

using FuturePtr = c10::intrusive_ptr<torch::distributed::rpc::JitFuture>;

// Complete a future. Its callbacks, from torch and the program, run in this call; their exceptions are logged and go no
// further. (RRefContext throws if the peer of an RRef is lost.)
void complete(const FuturePtr& future, c10::IValue value,
              std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> on_devices);
void fail(const FuturePtr& future, const std::string& text);

// A timeout of a call that torch can represent, in seconds: infinity, for example, becomes 24 days.
float representable(float timeout);

// The error text of a call that has timed out.
std::string timeout_text(std::chrono::milliseconds timeout);

}  // namespace rpc_backends
