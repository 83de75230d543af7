// From torch's messages to the parts of a frame and back.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include "frame.h"

namespace rpc_backends {

// Makes the parts of `message`, without copying what is large: the parts keep the message alive.
// Throws std::invalid_argument if a tensor of it cannot travel.
Parts encode(c10::intrusive_ptr<torch::distributed::rpc::Message> message, uint64_t call,
             const Contexts& contexts = {});

// What a frame carries, and the call that it belongs to.
struct Decoded {
  FrameKind kind;
  uint64_t call;
  c10::intrusive_ptr<torch::distributed::rpc::Message> message;
  Contexts contexts;
};

// Makes a message of parts; its tensors are in the memory of the parts, where they are large. Throws
// BadFrame if they are no message.
Decoded decode(const Parts& parts, const Limits& limits);

// What a message is to be, where that can be read, even if the rest cannot. Throws BadFrame.
Head read_head(const Parts& parts);

// The same parts with memory of their own.
Parts copy(const Parts& parts);

// The sum of all parts, in bytes.
uint64_t size_of(const Parts& parts);

}  // namespace rpc_backends
