// Converts torch's messages to the parts of a frame and back.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include "frame.h"

namespace rpc_backends {

// Returns the parts of `message`. Large data is not copied; the parts keep the message alive. Throws
// std::invalid_argument if a tensor cannot be sent.
Parts encode(c10::intrusive_ptr<torch::distributed::rpc::Message> message, uint64_t call,
             const Contexts& contexts = {});

// The contents of a frame, and the call that it belongs to.
struct Decoded {
  FrameKind kind;
  uint64_t call;
  c10::intrusive_ptr<torch::distributed::rpc::Message> message;
  Contexts contexts;
};

// Returns the message in `parts`; large tensors use the memory of the parts. Throws BadFrame if the parts are not a
// valid message.
Decoded decode(const Parts& parts, const Limits& limits);

// Returns the head of a message, even if the rest is not valid. Throws BadFrame if the head is not valid.
Head read_head(const Parts& parts);

// Returns a copy of the parts that shares no memory with them.
Parts copy(const Parts& parts);

// The total size of the parts, in bytes.
uint64_t size_of(const Parts& parts);

}  // namespace rpc_backends
