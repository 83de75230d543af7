#include "wire/codec.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "wire/tensors.h"

namespace rpc_backends {

using torch::distributed::rpc::Message;
using torch::distributed::rpc::MessageType;
using MessagePtr = c10::intrusive_ptr<Message>;

namespace {

// The flags of a storage. After those of a storage for an accelerator come the type and number of the device.
constexpr uint8_t kInlineStorage = 1;
constexpr uint8_t kOnDevice = 2;
constexpr uint8_t kStorageInPieces = 4;
constexpr uint8_t kAllStorageFlags = 7;

constexpr int32_t kRequests[] = {
    MessageType::SCRIPT_CALL,
    MessageType::PYTHON_CALL,
    MessageType::SCRIPT_REMOTE_CALL,
    MessageType::PYTHON_REMOTE_CALL,
    MessageType::SCRIPT_RREF_FETCH_CALL,
    MessageType::PYTHON_RREF_FETCH_CALL,
    MessageType::RREF_USER_DELETE,
    MessageType::RREF_FORK_REQUEST,
    MessageType::RREF_CHILD_ACCEPT,
    MessageType::FORWARD_AUTOGRAD_REQ,
    MessageType::BACKWARD_AUTOGRAD_REQ,
    MessageType::CLEANUP_AUTOGRAD_CONTEXT_REQ,
    MessageType::RUN_WITH_PROFILING_REQ,
    MessageType::RREF_BACKWARD_REQ,
};
constexpr int32_t kAnswers[] = {
    MessageType::SCRIPT_RET,
    MessageType::PYTHON_RET,
    MessageType::REMOTE_RET,
    MessageType::SCRIPT_RREF_FETCH_RET,
    MessageType::PYTHON_RREF_FETCH_RET,
    MessageType::RREF_ACK,
    MessageType::FORWARD_AUTOGRAD_RESP,
    MessageType::BACKWARD_AUTOGRAD_RESP,
    MessageType::CLEANUP_AUTOGRAD_CONTEXT_RESP,
    MessageType::RUN_WITH_PROFILING_RESP,
    MessageType::RREF_BACKWARD_RESP,
    MessageType::EXCEPTION,
};

// Whether a frame of this kind may contain a message of this type.
bool fits(FrameKind kind, int32_t type) {
  const auto is_it = [type](int32_t known) { return known == type; };
  return kind == FrameKind::kRequest ? std::any_of(std::begin(kRequests), std::end(kRequests), is_it)
                                     : std::any_of(std::begin(kAnswers), std::end(kAnswers), is_it);
}

Part part_of(std::vector<uint8_t>&& bytes) {
  auto owner = std::make_shared<std::vector<uint8_t>>(std::move(bytes));
  return {owner->data(), owner->size(), owner};
}

c10::Storage copied_storage(const void* data, size_t size) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), size, c10::GetCPUAllocator(), false);
  if (size > 0) {
    std::memcpy(storage.mutable_data(), data, size);
  }
  return storage;
}

bool is_aligned(const void* data) {
  constexpr uintptr_t largest_element = 16;
  return reinterpret_cast<uintptr_t>(data) % largest_element == 0;
}

// Returns the data of a part that must be in host memory.
const void* host_data(const Part& part) {
  if (!part.memory.is_host()) {
    throw BadFrame("a part is in memory of a device");
  }
  return part.data;
}

// Begins to copy the storages that are sent in pieces.
void stage_pieces(const TensorWriter& tensors, const Head& head, Staging& staging) {
  auto unsent = std::make_shared<int>(0);
  staging.unsent = unsent;
  // Nothing is sent before the first copy of each device has ended: receivers do not expect long pauses between pieces.
  Copies first;
  std::vector<c10::Device> begun;
  const auto begin = [&](c10::Device device) {
    if (std::find(begun.begin(), begun.end(), device) == begun.end()) {
      begun.push_back(device);
      first.record(device);
    }
  };
  for (size_t i = 0; i < tensors.storages().size(); ++i) {
    const StorageRange& range = tensors.storages()[i];
    if (!range.in_pieces) {
      continue;
    }
    for (uint64_t offset = 0; offset < range.size; offset += kPieceBytes) {
      const PieceHead piece_head{head.kind,
                                 static_cast<uint8_t>(range.target.type()),
                                 static_cast<uint8_t>(range.target.index()),
                                 static_cast<uint32_t>(i),
                                 head.call,
                                 head.session,
                                 range.size,
                                 offset};
      Writer written;
      piece_head.write(written);
      Piece piece;
      const uint64_t size = std::min(kPieceBytes, range.size - offset);
      const c10::Storage host = piece.copies.to_host(range.storage, range.begin + offset, size);
      piece.copies.record();
      begin(range.storage.device());
      piece.parts.push_back(part_of(std::move(written.bytes())));
      piece.parts.push_back(
          {host.data(), size, std::make_shared<std::pair<c10::Storage, std::shared_ptr<int>>>(host, unsent)});
      staging.pieces.push_back(std::move(piece));
    }
  }
  for (const c10::Device& device : staging.copies.devices()) {
    begin(device);
  }
  staging.pieces.push_front({std::move(first), {}});
}

}  // namespace

c10::Device known_device(uint8_t type, uint8_t index, const std::vector<c10::Device>& devices) {
  for (const c10::Device& device : devices) {
    if (static_cast<uint8_t>(device.type()) == type && static_cast<uint8_t>(device.index()) == index) {
      return device;
    }
  }
  throw UnknownDevice("a tensor is for device " + std::to_string(index) + " of torch's device type " +
                      std::to_string(type) + ", which this worker does not use for RPC");
}

c10::Storage storage_on(const Part& part) {
  auto* keep = new std::shared_ptr<void>(part.owner);
  auto deleter = [](void* context) { delete static_cast<std::shared_ptr<void>*>(context); };
  c10::DataPtr pointer(const_cast<void*>(part.data), keep, deleter, c10::Device(c10::kCPU));
  return c10::Storage(c10::Storage::use_byte_size_t(), part.size, std::move(pointer), nullptr, false);
}

uint64_t size_of(const Parts& parts) {
  uint64_t bytes = 0;
  for (const Part& part : parts) {
    bytes += part.size;
  }
  return bytes;
}

std::weak_ptr<void> last_to_leave(const Parts& parts) {
  const Part* largest = nullptr;
  for (const Part& part : parts) {
    if (largest == nullptr || part.size >= largest->size) {
      largest = &part;
    }
  }
  return largest == nullptr ? std::weak_ptr<void>() : largest->owner;
}

Parts copy(const Parts& parts) {
  Parts copies;
  copies.reserve(parts.size());
  for (const Part& part : parts) {
    // Aligned, so that a tensor can use it without another copy.
    auto owner = std::make_shared<c10::DataPtr>(c10::GetCPUAllocator()->allocate(part.size));
    if (part.size > 0) {
      std::memcpy(owner->get(), part.data, part.size);
    }
    copies.push_back({owner->get(), part.size, owner});
  }
  return copies;
}

Parts encode(MessagePtr message, uint64_t call, const Contexts& contexts) {
  Staging none;
  return encode(std::move(message), call, contexts, Placement(), none);
}

Parts encode(MessagePtr message, uint64_t call, const Contexts& contexts, const Placement& placement,
             Staging& staging) {
  TensorWriter tensors(message->tensors(), placement);
  tensors.copy(staging.copies);
  Head head;
  head.kind = message->isRequest() ? FrameKind::kRequest : FrameKind::kAnswer;
  head.type = message->type();
  head.call = call;
  head.payload_size = message->payload().size();
  head.payload_inline = head.payload_size <= kInlineBytes;
  head.tensors = static_cast<uint32_t>(message->tensors().size());
  head.storages = static_cast<uint32_t>(tensors.storages().size());
  head.context_size = static_cast<uint32_t>(size_of(contexts));
  for (const StorageRange& range : tensors.storages()) {
    head.bytes_in_pieces += range.in_pieces ? range.size : 0;
  }
  if (head.bytes_in_pieces > 0) {
    head.session = placement.session;
    staging.bytes_in_pieces = head.bytes_in_pieces;
    stage_pieces(tensors, head, staging);
  }

  Writer description;
  std::vector<bool> is_inline;
  size_t inline_bytes = 0;
  for (const StorageRange& range : tensors.storages()) {
    // Bytes that are still being copied are in a part of their own.
    const bool small =
        range.size <= kInlineBytes && inline_bytes + range.size <= kInlineStorageBytes && !range.is_copied();
    const bool on_device = !range.target.is_cpu();
    inline_bytes += small ? range.size : 0;
    is_inline.push_back(small);
    description.put(range.size);
    description.put(static_cast<uint8_t>((small ? kInlineStorage : 0) | (on_device ? kOnDevice : 0) |
                                         (range.in_pieces ? kStorageInPieces : 0)));
    if (on_device) {
      description.put(static_cast<uint8_t>(range.target.type()));
      description.put(static_cast<uint8_t>(range.target.index()));
    }
  }
  tensors.write(description);
  head.description_size = description.size();

  Writer first;
  first.bytes().reserve(64 + head.context_size + description.size() + inline_bytes +
                        (head.payload_inline ? head.payload_size : 0));
  head.write(first);
  write(contexts, first);
  first.put(description.bytes().data(), description.size());
  if (head.payload_inline) {
    first.put(message->payload().data(), message->payload().size());
  }
  for (size_t i = 0; i < is_inline.size(); ++i) {
    if (is_inline[i]) {
      first.put(tensors.storages()[i].data(), tensors.storages()[i].size);
    }
  }

  Parts parts;
  parts.push_back(part_of(std::move(first.bytes())));
  if (!head.payload_inline) {
    parts.push_back({message->payload().data(), message->payload().size(), std::make_shared<MessagePtr>(message)});
  }
  for (size_t i = 0; i < is_inline.size(); ++i) {
    if (!is_inline[i] && !tensors.storages()[i].in_pieces) {
      const StorageRange& range = tensors.storages()[i];
      parts.push_back({range.data(), range.size, std::make_shared<c10::Storage>(range.sent())});
      if (range.is_direct) {
        parts.back().memory = memory_of(range.storage.device());
        parts.back().target = memory_of(range.target);
      }
    }
  }
  return parts;
}

Head read_head(const Parts& parts) {
  if (parts.empty()) {
    throw BadFrame("it is empty");
  }
  (void)host_data(parts[0]);
  if (is_piece(parts)) {
    const PieceHead piece = PieceHead::read(parts);
    Head head;
    head.kind = piece.kind;
    head.call = piece.call;
    head.session = piece.session;
    return head;
  }
  Reader in(parts[0].data, parts[0].size);
  return Head::read(in);
}

Decoded decode(const Parts& parts, const Limits& limits) {
  Copies none;
  return decode(parts, limits, {}, none);
}

Decoded decode(const Parts& parts, const Limits& limits, const std::vector<c10::Device>& devices, Copies& copies,
               const ArrivedStorages& arrived, ReceivedMemory* received) {
  if (parts.empty()) {
    throw BadFrame("it is empty");
  }
  Reader in(host_data(parts[0]), parts[0].size);
  const Head head = Head::read(in);
  limits.check(head, parts);
  if (!fits(head.kind, head.type)) {
    throw BadFrame("its message type " + std::to_string(head.type) + " is unknown");
  }
  Contexts contexts = read_contexts(Reader(in.take(head.context_size), head.context_size));
  if (head.description_size > in.left()) {
    throw BadFrame("it ends in the middle of its descriptions");
  }
  Reader description(in.take(head.description_size), head.description_size);

  size_t next = 1;
  auto next_part = [&](uint64_t size) -> const Part& {
    if (next >= parts.size() || parts[next].size != size) {
      throw BadFrame("a part is missing, or its size is wrong");
    }
    return parts[next++];
  };

  std::vector<char> payload;
  const void* bytes = head.payload_inline ? in.take(head.payload_size) : host_data(next_part(head.payload_size));
  if (head.payload_size > 0) {
    const auto* begin = static_cast<const char*>(bytes);
    payload.assign(begin, begin + head.payload_size);
  }

  std::vector<c10::Storage> storages;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> on_devices;
  size_t used = 0;
  // No reserve() with a count from the frame: the count may be wrong.
  for (uint32_t i = 0; i < head.storages; ++i) {
    const auto size = description.get<uint64_t>();
    const auto flags = description.get<uint8_t>();
    if (flags > kAllStorageFlags) {
      throw BadFrame("a storage has unknown flags");
    }
    const bool on_device = (flags & kOnDevice) != 0;
    c10::Device device(c10::kCPU);
    if (on_device) {
      const auto type = description.get<uint8_t>();
      device = known_device(type, description.get<uint8_t>(), devices);
    }
    if ((flags & kStorageInPieces) != 0) {
      const auto storage = arrived.find(i);
      if (storage == arrived.end() || storage->second.nbytes() != size || storage->second.device() != device) {
        throw BadFrame("a storage differs from its pieces");
      }
      storages.push_back(storage->second);
      ++used;
    } else if ((flags & kInlineStorage) != 0) {
      if (size > in.left()) {
        throw BadFrame("it ends in the middle of a storage");
      }
      storages.push_back(copied_storage(in.take(size), size));
    } else {
      const Part& part = next_part(size);
      if (!part.memory.is_host()) {
        if (!on_device || received == nullptr) {
          throw BadFrame("a part is in memory of a device, which it does not name");
        }
        storages.push_back(received->storage_of(part));
        if (storages.back().device() != device) {
          throw BadFrame("a part is in memory of another device than the one that it names");
        }
        on_devices.push_back(storages.back().getWeakStorageImpl());
        continue;
      }
      storages.push_back(is_aligned(part.data) ? storage_on(part) : copied_storage(part.data, part.size));
    }
    if (on_device) {
      if ((flags & kStorageInPieces) == 0) {
        storages.back() = copies.to_device(storages.back(), device);
      }
      on_devices.push_back(storages.back().getWeakStorageImpl());
    }
  }
  if (used != arrived.size()) {
    throw BadFrame("pieces of a storage that it does not have came before it");
  }
  if (in.left() != 0 || next != parts.size()) {
    throw BadFrame("it is longer than it claims to be");
  }

  const TensorReader reader(std::move(storages));
  std::vector<at::Tensor> tensors;
  for (uint32_t i = 0; i < head.tensors; ++i) {
    try {
      tensors.push_back(reader.read(description));
    } catch (const c10::Error& error) {
      throw BadFrame(std::string("a tensor is not valid: ") + error.what_without_backtrace());
    }
  }
  if (description.left() != 0) {
    throw BadFrame("its descriptions are longer than they claim to be");
  }
  auto message = c10::make_intrusive<Message>(std::move(payload), std::move(tensors),
                                              static_cast<MessageType>(head.type), static_cast<int64_t>(head.call));
  return {head.kind, head.call, std::move(message), std::move(contexts), std::move(on_devices)};
}

}  // namespace rpc_backends
