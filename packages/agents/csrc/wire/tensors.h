// Converts tensors to descriptions and storages, and back. The frame contains the descriptions; the memory is separate.
#pragma once

#include <ATen/ATen.h>
#include <ATen/quantized/Quantizer.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "wire/devices.h"

namespace rpc_backends {

// The bytes of one storage that the tensors of a message use.
struct StorageRange {
  c10::Storage storage;
  uint64_t begin = 0;  // offset from the storage's first byte
  uint64_t size = 0;
  c10::Device target{c10::kCPU};  // where the receiver needs the bytes
  // A copy of these bytes, if `storage` is on an accelerator: in host memory, or on the accelerator if `is_direct`.
  c10::Storage copied;
  bool is_direct = false;  // moved by the transport itself
  bool in_pieces = false;  // sent before the message

  bool is_copied() const { return static_cast<bool>(copied); }
  // The storage that has the bytes to be sent.
  const c10::Storage& sent() const { return is_copied() ? copied : storage; }
  const void* data() const { return is_copied() ? copied.data() : static_cast<const uint8_t*>(storage.data()) + begin; }
};

// The kind of a tensor's description.
enum class TensorKind : uint8_t {
  kUndefined = 0,
  kStrided = 1,
  kSparse = 2,
  kCompressed = 3,
  kQuantizedPerTensor = 4,
  kQuantizedPerChannel = 5,
};

// Returns why a tensor with these sizes does not fit in a storage of `bytes` bytes; empty if it does.
std::string why_outside(at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset, uint64_t itemsize,
                        uint64_t bytes);

// Describes the tensors of one message. Tensors that share memory also share it at the receiver.
class TensorWriter {
 public:
  // Throws std::invalid_argument if a tensor cannot be sent, and std::runtime_error if its device is not mapped; the
  // text says which one and why.
  TensorWriter(const std::vector<at::Tensor>& tensors, const Placement& placement);

  void write(Writer& out) const;

  const std::vector<StorageRange>& storages() const { return storages_; }

  // Begins to copy the storages that are on accelerators, except those that are sent in pieces: to host memory, or on
  // the device if the transport moves them itself, because the program may change them after the call.
  void copy(Copies& copies);

 private:
  // A tensor, and the strided tensors that it consists of.
  struct Node {
    TensorKind kind = TensorKind::kUndefined;
    at::Tensor whole;
    std::vector<at::Tensor> dense;
  };

  static Node take_apart(const at::Tensor& tensor, size_t number, const Placement& placement);
  // Throws if a tensor's memory does not exist or is smaller than the tensor. `what`: which member of the message's
  // tensor this is, for the error.
  static void check_memory(const at::Tensor& tensor, size_t number, const char* what);
  static at::Tensor checked_member(const at::Tensor& tensor, size_t number, const char* what);
  void find_storages(const Placement& placement);
  void write_strided(Writer& out, const at::Tensor& tensor) const;

  std::vector<Node> nodes_;
  std::unordered_map<const c10::StorageImpl*, size_t> index_;
  std::vector<StorageRange> storages_;
};

// Creates tensors from their descriptions; throws BadFrame.
class TensorReader {
 public:
  explicit TensorReader(std::vector<c10::Storage> storages) : storages_(std::move(storages)) {}

  at::Tensor read(Reader& in) const;

 private:
  struct Strided {
    at::Tensor tensor;
    uint8_t flags = 0;
  };

  Strided read_strided(Reader& in) const;
  // Read a member of a sparse or quantized tensor. read_numbers_of() reads members that torch uses as plain numbers:
  // indices, scales and zero points.
  at::Tensor read_member(Reader& in) const;
  at::Tensor read_numbers_of(Reader& in) const;
  at::Tensor read_sparse(Reader& in) const;
  at::Tensor read_compressed(Reader& in) const;
  at::Tensor read_per_tensor(Reader& in) const;
  at::Tensor read_per_channel(Reader& in) const;
  at::Tensor quantized(const Strided& strided, at::QuantizerPtr quantizer) const;

  std::vector<c10::Storage> storages_;
};

}  // namespace rpc_backends
