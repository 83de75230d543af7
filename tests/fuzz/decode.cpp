// For any input, decode() returns a message or throws BadFrame; a message can be read to the last byte and
// sent on. `run.sh` runs this with the address and undefined-behaviour sanitizers.
//
// An input is a list of parts: their number in one byte, the size of each in two bytes, then their contents.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <vector>

#include <ATen/ATen.h>

#include "../../packages/agents/csrc/codec.h"

namespace {

using rpc_backends::Part;
using rpc_backends::Parts;

constexpr size_t kMostParts = 8;
// Larger tensors are not read: an expanded tensor may have more elements than fit into memory.
constexpr int64_t kMostElements = 1 << 16;

// Each part gets a block of exactly its size, so that the sanitizer sees a read beyond it.
Parts parts_of(const uint8_t* data, size_t size) {
  Parts parts;
  if (size == 0) {
    return parts;
  }
  const size_t count = data[0] % (kMostParts + 1);
  size_t place = 1 + 2 * count;
  for (size_t i = 0; i < count && place <= size; ++i) {
    const size_t wanted = data[1 + 2 * i] | (data[2 + 2 * i] << 8);
    const size_t length = i + 1 == count ? size - place : std::min(wanted, size - place);
    std::shared_ptr<void> block(std::malloc(length), std::free);
    std::memcpy(block.get(), data + place, length);
    parts.push_back({block.get(), length, block});
    place += length;
  }
  return parts;
}

std::vector<uint8_t> input_of(const Parts& parts) {
  std::vector<uint8_t> input{static_cast<uint8_t>(parts.size())};
  for (const Part& part : parts) {
    input.push_back(static_cast<uint8_t>(part.size));
    input.push_back(static_cast<uint8_t>(part.size >> 8));
  }
  for (const Part& part : parts) {
    const auto* bytes = static_cast<const uint8_t*>(part.data);
    input.insert(input.end(), bytes, bytes + part.size);
  }
  return input;
}

// Torch's kernels use the indices of a sparse tensor as they are in memory, without another check.
void check_indices(const at::Tensor& tensor) {
  const at::Tensor indices = tensor._indices().contiguous();
  const int64_t count = tensor._nnz();
  const auto* number = static_cast<const int64_t*>(indices.const_data_ptr());
  for (int64_t dimension = 0; dimension < tensor.sparse_dim(); ++dimension) {
    for (int64_t i = 0; i < count; ++i, ++number) {
      if (*number < 0 || *number >= tensor.size(dimension)) {
        std::abort();
      }
    }
  }
}

void read(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return;
  }
  if (tensor.layout() == at::kSparse) {
    read(tensor._indices());
    read(tensor._values());
    check_indices(tensor);
    return;
  }
  if (tensor.numel() > kMostElements) {
    return;
  }
  if (tensor.layout() == at::kStrided) {
    const at::Tensor copy = tensor.detach().clone(at::MemoryFormat::Contiguous);
    volatile uint8_t sum = 0;
    const auto* bytes = static_cast<const uint8_t*>(copy.const_data_ptr());
    for (size_t i = 0; i < copy.nbytes(); ++i) {
      sum = static_cast<uint8_t>(sum + bytes[i]);
    }
  }
}

void write_seeds(const std::filesystem::path& folder) {
  using torch::distributed::rpc::Message;
  using torch::distributed::rpc::MessageType;
  const at::Tensor matrix = at::arange(24, at::kFloat).view({4, 6});
  const at::Tensor large = at::arange(600, at::kDouble);
  const std::vector<std::vector<at::Tensor>> all = {
      {},
      {matrix},
      {matrix.t(), matrix.select(0, 1), matrix.slice(1, 0, 6, 2)},
      {large, large.slice(0, 5, 9)},
      {at::Tensor(), at::empty({0, 3}), at::scalar_tensor(7)},
      {matrix.to(at::kBFloat16), matrix.to(at::kBool), matrix.to(at::kComplexFloat).conj()},
      {matrix.to_sparse()},
      {matrix.to_sparse().coalesce(), at::sparse_coo_tensor(at::zeros({1, 3}, at::kLong), at::ones({1, 2}).expand({3, 2}), {4, 2})},
      {matrix.to_sparse_csr()},
      {at::quantize_per_tensor(matrix, 0.5, 3, at::kQUInt8)},
      {at::quantize_per_channel(matrix, at::ones({4}, at::kDouble), at::zeros({4}, at::kLong), 0, at::kQInt8)},
      {at::ones({3}).set_requires_grad(true)},
  };
  int number = 0;
  for (const auto& tensors : all) {
    for (const MessageType type : {MessageType::PYTHON_CALL, MessageType::PYTHON_RET}) {
      for (const size_t payload : {size_t{0}, size_t{40}, size_t{4200}}) {
        auto message = c10::make_intrusive<Message>(std::vector<char>(payload, 'p'), std::vector<at::Tensor>(tensors),
                                                    MessageType(type));
        const bool is_request = type == MessageType::PYTHON_CALL;
        const rpc_backends::Contexts contexts{{"trace", std::string(16, 'c')}, {"other", ""}};
        const auto input = input_of(rpc_backends::encode(message, 7, is_request ? contexts : rpc_backends::Contexts()));
        std::ofstream file(folder / ("seed" + std::to_string(number++)), std::ios::binary);
        file.write(reinterpret_cast<const char*>(input.data()), static_cast<std::streamsize>(input.size()));
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  if (const char* folder = std::getenv("FUZZ_WRITE_SEEDS")) {
    write_seeds(folder);
    std::exit(0);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rpc_backends::Limits limits;
  limits.message_bytes = uint64_t{1} << 20;
  try {
    const rpc_backends::Decoded decoded = rpc_backends::decode(parts_of(data, size), limits);
    Parts again;
    try {
      for (const at::Tensor& tensor : decoded.message->tensors()) {
        read(tensor);
      }
      again = rpc_backends::encode(decoded.message, decoded.call, decoded.contexts);
    } catch (const c10::Error&) {
      return 0;  // torch cannot copy tensors of some dtypes; the caller of send() gets this error
    }
    const rpc_backends::Decoded twice = rpc_backends::decode(again, rpc_backends::Limits());
    if (twice.call != decoded.call || twice.message->tensors().size() != decoded.message->tensors().size() ||
        twice.contexts.size() != decoded.contexts.size()) {
      std::abort();
    }
  } catch (const rpc_backends::BadFrame&) {
  }
  return 0;
}
