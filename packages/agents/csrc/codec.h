// Converts torch's messages to the parts of a frame and back.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include "devices.h"
#include "frame.h"

namespace rpc_backends {

// Returns the parts of `message`. Large data is not copied; the parts keep the message alive. Tensors on accelerators
// are copied to host memory: the parts are complete when `copies` have ended. Throws std::invalid_argument if a tensor
// cannot be sent.
Parts encode(c10::intrusive_ptr<torch::distributed::rpc::Message> message, uint64_t call, const Contexts& contexts,
             const Placement& placement, Copies& copies);
// The same, for messages whose tensors are on the CPU.
Parts encode(c10::intrusive_ptr<torch::distributed::rpc::Message> message, uint64_t call,
             const Contexts& contexts = {});

// The contents of a frame, and the call that it belongs to.
struct Decoded {
  FrameKind kind;
  uint64_t call;
  c10::intrusive_ptr<torch::distributed::rpc::Message> message;
  Contexts contexts;
  // The storages of tensors that are on accelerators here.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> on_devices;
};

// A frame has a tensor for a device that this worker does not use for RPC, as far as it knows.
struct UnknownDevice : BadFrame {
  using BadFrame::BadFrame;
};

// Returns the message in `parts`; large tensors use the memory of the parts. Tensors for accelerators are copied there,
// on the current streams: their memory is complete when `copies` have ended. Throws BadFrame if the parts are not a
// valid message.
Decoded decode(const Parts& parts, const Limits& limits, const std::vector<c10::Device>& devices, Copies& copies);
// The same, for a worker without accelerators.
Decoded decode(const Parts& parts, const Limits& limits);

// Returns the head of a message, even if the rest is not valid. Throws BadFrame if the head is not valid.
Head read_head(const Parts& parts);

// Returns a copy of the parts that shares no memory with them.
Parts copy(const Parts& parts);

// The total size of the parts, in bytes.
uint64_t size_of(const Parts& parts);

// The owner of the largest part, which is probably sent last: when the owner is released, the message has been sent.
std::weak_ptr<void> last_to_leave(const Parts& parts);

}  // namespace rpc_backends
