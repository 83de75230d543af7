// The spans of forward passes of distributed autograd, for the backward passes that belong to them.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

#include "record/span.h"

namespace rpc_backends {

class ForwardSpans {
 public:
  // Returns the span in which this thread sends a request. A backward pass outside of all spans has that of its forward
  // pass, which is noted here.
  SpanContext span_of(const torch::distributed::rpc::Message& request);

 private:
  static constexpr size_t kMost = 64;

  void note(int64_t autograd_context, const SpanContext& span);
  SpanContext noted(int64_t autograd_context) const;

  std::atomic<bool> has_noted_{false};
  mutable std::mutex mutex_;
  std::array<std::pair<int64_t, SpanContext>, kMost> spans_{};  // by the id of the context of autograd
  size_t next_ = 0;
};

}  // namespace rpc_backends
