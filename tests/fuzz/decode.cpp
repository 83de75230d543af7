// For any input, decode() returns a message or throws BadFrame; a message can be read to the last byte and
// sent on. `run.sh` runs this with the address and undefined-behaviour sanitizers.
//
// An input is a list of parts: their number in one byte, the size of each in two bytes, then their contents. Pieces
// come first, two parts each; a second part of one byte stands for a whole piece of zeros.
#include <ATen/ATen.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <vector>

#include "seeds.h"
#include "wire/codec.h"
#include "wire/pieces.h"
#include "wire/tensors.h"

namespace {

using rpc_backends::Part;
using rpc_backends::Parts;

constexpr size_t kMostParts = 8;
// The most that pieces may reserve.
constexpr uint64_t kMostReserved = 4 * rpc_backends::kPieceBytes;
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

// Takes the pieces from the front of `parts`, and then the message if it is in pieces. Returns its storages; empty if
// something is missing.
std::optional<rpc_backends::ArrivingMessage::Whole> collect(Parts& parts, const rpc_backends::Limits& limits) {
  static const std::vector<uint8_t> zeros(rpc_backends::kPieceBytes);
  rpc_backends::ArrivingMessage message;
  uint64_t reserved = 0;
  const auto reserve = [&](uint64_t bytes) {
    if (bytes > kMostReserved - reserved) {
      throw rpc_backends::BadFrame("it is too large");
    }
    reserved += bytes;
  };
  while (rpc_backends::is_piece(parts)) {
    Parts piece(parts.begin(), parts.begin() + std::min<ptrdiff_t>(2, static_cast<ptrdiff_t>(parts.size())));
    parts.erase(parts.begin(), parts.begin() + static_cast<ptrdiff_t>(piece.size()));
    if (piece.size() == 2 && piece[1].size == 1) {
      piece[1] = {zeros.data(), zeros.size(), {}};
    }
    const rpc_backends::PieceHead head = rpc_backends::PieceHead::read(piece);
    rpc_backends::Copies none;
    (void)message.add_piece(head, piece[1], c10::Device(c10::kCPU), {}, none, reserve);
  }
  const rpc_backends::Head head = rpc_backends::read_head(parts);
  limits.check(head, parts);
  return message.add_message(head, parts, {}, reserve);
}

Parts in_one_part(rpc_backends::Writer& written) {
  auto bytes = std::make_shared<std::vector<uint8_t>>(written.bytes());
  return {{bytes->data(), bytes->size(), bytes}};
}

// A message whose only tensor came in two pieces: one of zeros, and a short one.
std::string seed_in_pieces() {
  constexpr uint64_t kShort = 200;
  constexpr uint64_t kSize = rpc_backends::kPieceBytes + kShort;
  rpc_backends::Writer description;
  description.put(kSize);
  description.put(uint8_t{4});  // in pieces
  description.put(rpc_backends::TensorKind::kStrided);
  description.put(static_cast<uint8_t>(at::kFloat));
  description.put(uint8_t{0});
  description.put(uint8_t{1});  // dimensions
  description.put(uint32_t{0});
  for (const int64_t number : {int64_t{0}, static_cast<int64_t>(kSize / sizeof(float)), int64_t{1}}) {
    description.put(number);  // offset, size, stride
  }
  rpc_backends::Head head;
  head.type = torch::distributed::rpc::MessageType::PYTHON_CALL;
  head.payload_inline = true;
  head.tensors = head.storages = 1;
  head.description_size = description.size();
  head.session = 1;
  head.bytes_in_pieces = kSize;
  rpc_backends::Writer first;
  head.write(first);
  first.put(description.bytes().data(), description.size());

  Parts parts;
  for (const uint64_t offset : {uint64_t{0}, rpc_backends::kPieceBytes}) {
    rpc_backends::Writer piece, data;
    rpc_backends::PieceHead{rpc_backends::FrameKind::kRequest, 0, 0, 0, 0, 1, kSize, offset}.write(piece);
    data.bytes().resize(offset == 0 ? 1 : kShort);
    parts.push_back(in_one_part(piece)[0]);
    parts.push_back(in_one_part(data)[0]);
  }
  parts.push_back(in_one_part(first)[0]);
  rpc_backends::Limits limits;
  Parts rest = parts_of(input_of(parts).data(), input_of(parts).size());
  const auto whole = collect(rest, limits);
  rpc_backends::Copies none;
  check(whole && rpc_backends::decode(whole->parts, limits, {}, none, whole->storages).message->tensors().size() == 1);
  const auto input = input_of(parts);
  return {input.begin(), input.end()};
}

}  // namespace

std::vector<std::string> seeds() {
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
      {matrix.to_sparse().coalesce(),
       at::sparse_coo_tensor(at::zeros({1, 3}, at::kLong), at::ones({1, 2}).expand({3, 2}), {4, 2})},
      {matrix.to_sparse_csr()},
      {at::quantize_per_tensor(matrix, 0.5, 3, at::kQUInt8)},
      {at::quantize_per_channel(matrix, at::ones({4}, at::kDouble), at::zeros({4}, at::kLong), 0, at::kQInt8)},
      {at::ones({3}).set_requires_grad(true)},
  };
  std::vector<std::string> written{seed_in_pieces()};
  for (const auto& tensors : all) {
    for (const MessageType type : {MessageType::PYTHON_CALL, MessageType::PYTHON_RET}) {
      for (const size_t payload : {size_t{0}, size_t{40}, size_t{4200}}) {
        auto message = c10::make_intrusive<Message>(std::vector<char>(payload, 'p'), std::vector<at::Tensor>(tensors),
                                                    MessageType(type));
        const bool is_request = type == MessageType::PYTHON_CALL;
        const rpc_backends::Contexts contexts{{"trace", std::string(16, 'c')}, {"other", ""}};
        const auto input = input_of(rpc_backends::encode(message, 7, is_request ? contexts : rpc_backends::Contexts()));
        written.emplace_back(input.begin(), input.end());
      }
    }
  }
  return written;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rpc_backends::Limits limits;
  limits.message_bytes = uint64_t{1} << 20;
  try {
    Parts parts = parts_of(data, size);
    rpc_backends::ArrivedStorages storages;
    if (rpc_backends::is_in_pieces(parts)) {
      limits.message_bytes = kMostReserved;
      auto whole = collect(parts, limits);
      if (!whole) {
        return 0;
      }
      parts = std::move(whole->parts);
      storages = std::move(whole->storages);
    }
    rpc_backends::Copies none;
    const rpc_backends::Decoded decoded = rpc_backends::decode(parts, limits, {}, none, storages);
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
