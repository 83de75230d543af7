// Converts torch's messages to the parts of a frame and back.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <deque>
#include <memory>
#include <unordered_map>

#include "wire/devices.h"
#include "wire/frame.h"

namespace rpc_backends {

// A piece of a message: it is complete when `copies` have ended. Without parts there is nothing to send.
struct Piece {
  Copies copies;
  Parts parts;
};

// What must end before a message is sent.
struct Staging {
  // Copies to host memory that the message itself has. Not recorded.
  Copies copies;
  // What is sent before the message, in this order. Recorded.
  std::deque<Piece> pieces;
  uint64_t bytes_in_pieces = 0;
  // Expires when the transport has released all pieces.
  std::weak_ptr<void> unsent;

  bool empty() const { return copies.empty() && pieces.empty(); }
};

// Returns the parts of `message`. Large data is not copied; the parts keep the message alive. Tensors on accelerators
// are copied to host memory: `staging` is what must end before the parts are sent. Throws std::invalid_argument if a
// tensor cannot be sent.
Parts encode(c10::intrusive_ptr<torch::distributed::rpc::Message> message, uint64_t call, const Contexts& contexts,
             const Placement& placement, Staging& staging);
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

// The storages of a message that arrived in pieces, by their numbers in the message.
using ArrivedStorages = std::unordered_map<uint32_t, c10::Storage>;

// Returns the message in `parts`; large tensors use the memory of the parts. Tensors for accelerators are copied there,
// on the current streams: their memory is complete when `copies` have ended. `arrived` must have exactly the storages
// that the message has in pieces. `received` knows the parts that a transport has put into memory of accelerators.
// Throws BadFrame if the parts are not a valid message.
Decoded decode(const Parts& parts, const Limits& limits, const std::vector<c10::Device>& devices, Copies& copies,
               const ArrivedStorages& arrived = {}, ReceivedMemory* received = nullptr);
// The same, for a worker without accelerators.
Decoded decode(const Parts& parts, const Limits& limits);

// Returns the device with this type and index, which must be one of `devices`; throws UnknownDevice.
c10::Device known_device(uint8_t type, uint8_t index, const std::vector<c10::Device>& devices);

// A storage on the memory of a part, which it keeps.
c10::Storage storage_on(const Part& part);

// Returns the head of a message, even if the rest is not valid. For a piece, it has the kind and the call of its
// message. Throws BadFrame if the head is not valid.
Head read_head(const Parts& parts);

// Returns a copy of the parts that shares no memory with them.
Parts copy(const Parts& parts);

// The total size of the parts, in bytes.
uint64_t size_of(const Parts& parts);

// The owner of the largest part, which is probably sent last: when the owner is released, the message has been sent.
std::weak_ptr<void> last_to_leave(const Parts& parts);

}  // namespace rpc_backends
