// Changes the contents of the tensors of a message, for fault injection.
#pragma once

#include <cstdint>

namespace rpc_backends {

// The tensors of a request or an answer. The agents' requests and answers implement this beside their own interface:
// ask with dynamic_cast, which gives null if the agents are older.
class TensorValues {
 public:
  virtual ~TensorValues() = default;

  // Flips a bit of one element. Replaces the tensor with a changed copy, so that the program's own tensor stays as it
  // is. `element` counts the elements of all tensors in CPU memory that are not empty, and `bit` those of the element,
  // from the lowest one; both start again at their ends. Returns false if there is no such tensor, or if the message
  // has been passed on.
  virtual bool flip_bit(uint64_t element, uint64_t bit) = 0;

 protected:
  TensorValues() = default;
  TensorValues(const TensorValues&) = default;
  TensorValues& operator=(const TensorValues&) = default;
};

}  // namespace rpc_backends
