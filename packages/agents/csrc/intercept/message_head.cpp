#include "intercept/message_head.h"

namespace rpc_backends {

using torch::distributed::rpc::Message;

namespace {

// Whether the elements of a tensor are bytes that this thread can change.
bool has_bytes(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().is_cpu() && tensor.layout() == at::kStrided && tensor.numel() > 0;
}

}  // namespace

uint64_t bytes_of(const Message& message) {
  return message.payload().size() + tensor_bytes_of(message);
}

MessagePtr copy_of(const Message& message) {
  std::vector<char> payload = message.payload();
  std::vector<at::Tensor> tensors = message.tensors();
  return c10::make_intrusive<Message>(std::move(payload), std::move(tensors), message.type(), message.id());
}

bool flip_bit_of(Message& message, uint64_t element, uint64_t bit) {
  uint64_t all = 0;
  for (const at::Tensor& tensor : message.tensors()) {
    all += has_bytes(tensor) ? static_cast<uint64_t>(tensor.numel()) : 0;
  }
  if (all == 0) {
    return false;
  }
  element %= all;
  for (at::Tensor& tensor : message.tensors()) {
    const auto size = has_bytes(tensor) ? static_cast<uint64_t>(tensor.numel()) : 0;
    if (element >= size) {
      element -= size;
      continue;
    }
    at::Tensor copy = tensor.detach().clone(at::MemoryFormat::Contiguous);
    const uint64_t bits = 8 * copy.element_size();
    auto* const bytes = static_cast<uint8_t*>(copy.data_ptr());
    bytes[element * copy.element_size() + bit % bits / 8] ^= static_cast<uint8_t>(1U << (bit % 8));
    copy.set_requires_grad(tensor.requires_grad());
    tensor = std::move(copy);
    return true;
  }
  return false;
}

}  // namespace rpc_backends
