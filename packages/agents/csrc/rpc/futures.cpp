#include "rpc/futures.h"

#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <exception>
#include <stdexcept>
#include <utility>

namespace rpc_backends {

namespace rpc = torch::distributed::rpc;

namespace {

// Seconds (24 days). torch's agents keep timeouts as milliseconds in 32 bits, and a longer one becomes negative.
constexpr float kLongestTimeout = 2147483.0F;

}  // namespace

void complete(const FuturePtr& future, c10::IValue value,
              std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> on_devices) {
  // With the list of storages, because torch cannot find those of sparse tensors of some layouts.
  completing(future, [&] { future->markCompleted(std::move(value), std::move(on_devices)); });
}

void fail(const FuturePtr& future, const std::string& text) {
  completing(future, [&] { future->setError(std::make_exception_ptr(std::runtime_error(text))); });
}

float representable(float timeout) {
  return timeout <= kLongestTimeout ? timeout : kLongestTimeout;  // also if it is not a number
}

std::string timeout_text(std::chrono::milliseconds timeout) {
  // Torch's text, which programs look for; "{}" in it stands for the number.
  std::string text = rpc::kRpcTimeoutErrorStr;
  const auto place = text.find("{}");
  if (place != std::string::npos) {
    text.replace(place, 2, std::to_string(timeout.count()));
  }
  return rpc::makeRPCError(text, rpc::RPCErrorType::TIMEOUT);
}

}  // namespace rpc_backends
