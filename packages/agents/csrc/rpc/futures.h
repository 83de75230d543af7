// The futures of calls: how they get their values and errors.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <chrono>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"

namespace rpc_backends {

using FuturePtr = c10::intrusive_ptr<torch::distributed::rpc::JitFuture>;

// Runs `work`, which completes `future`: the callbacks of torch and the program run in it. Its exceptions are logged
// and go no further. (RRefContext throws if the peer of an RRef is lost.) If `future` is still not complete, it gets
// the exception as its error, because nothing else would end the call.
template <typename Work>
void completing(const FuturePtr& future, Work&& work) {
  constexpr const char* kInCallback = "in a callback at the end of a call";
  std::exception_ptr thrown;
  const bool is_done = contained(kInCallback, [&] {
    try {
      std::forward<Work>(work)();
    } catch (...) {
      thrown = std::current_exception();
      throw;
    }
  });
  if (!is_done && !future->completed()) {
    contained(kInCallback, [&] { future->setErrorIfNeeded(thrown); });
  }
}

// Complete a future, as completing() does.
void complete(const FuturePtr& future, c10::IValue value,
              std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> on_devices);
void fail(const FuturePtr& future, const std::string& text);

// A timeout of a call that torch can represent, in seconds: infinity, for example, becomes 24 days.
float representable(float timeout);

// The error text of a call that has timed out.
std::string timeout_text(std::chrono::milliseconds timeout);

}  // namespace rpc_backends
