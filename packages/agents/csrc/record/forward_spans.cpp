#include "record/forward_spans.h"

#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/rpc_messages/propagate_gradients_req.h>

#include "base/log.h"

namespace rpc_backends {

namespace autograd = torch::distributed::autograd;

SpanContext ForwardSpans::span_of(const torch::distributed::rpc::Message& request) {
  using torch::distributed::rpc::MessageType;
  const SpanContext span = current_span();
  if (span.sampling != SpanContext::Sampling::kNone) {
    if (request.type() == MessageType::FORWARD_AUTOGRAD_REQ) {
      note(autograd::DistAutogradContainer::currentContextId(), span);
    }
    return span;
  }
  SpanContext of_forward;
  if (request.type() == MessageType::BACKWARD_AUTOGRAD_REQ && has_noted_) {
    // The engine sends it on a thread of its own, which knows nothing of the program's span.
    contained("while reading a request of autograd", [&] {
      const auto gradients = autograd::PropagateGradientsReq::fromMessage(request);
      of_forward = noted(gradients->getAutogradMetadata().autogradContextId);
    });
  }
  return of_forward;
}

void ForwardSpans::note(int64_t autograd_context, const SpanContext& span) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [context, known] : spans_) {
    if (context == autograd_context && known.sampling != SpanContext::Sampling::kNone) {
      return;
    }
  }
  spans_[next_++ % kMost] = {autograd_context, span};
  has_noted_ = true;
}

SpanContext ForwardSpans::noted(int64_t autograd_context) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [context, span] : spans_) {
    if (context == autograd_context) {
      return span;
    }
  }
  return {};
}

}  // namespace rpc_backends
