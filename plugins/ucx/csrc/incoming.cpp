#include "incoming.h"

#include <cstring>
#include <string>
#include <utility>

#include "rpc_backends_agents/blocks.h"

namespace rpc_backends::ucx {

using namespace wire;

namespace {

template <typename Header>
Header header_in(const void* header, size_t size) {
  if (size < sizeof(Header)) {
    throw Malformed("a header is too short");
  }
  Header copied;
  std::memcpy(&copied, header, sizeof copied);
  return copied;
}

// Returns memory for a large part, which peers on this host read page by page when it is sent on.
Part take_large_block(size_t size) {
  return take_block(size, true);
}

char* bytes_of(const Part& part) {
  return static_cast<char*>(const_cast<void*>(part.data));
}

}  // namespace

Incoming::Message& Incoming::at(uint64_t number) {
  if (number < next_) {
    throw Malformed("a message has arrived twice");
  }
  if (number - next_ > kMostAhead) {
    throw Malformed("a message has a number that is too large");
  }
  return messages_[number];
}

void Incoming::match(const Message& message, uint64_t index, size_t size) const {
  if (index >= message.parts.size() || message.parts[index].data != nullptr || message.parts[index].size != size) {
    throw Malformed("a part of a message does not have its declared size");
  }
}

size_t Incoming::read_sizes(Message& message, size_t count, const Part& from) const {
  const size_t begin = begin_of_parts(count);
  if (begin > from.size) {
    throw Malformed("the sizes of a message are missing");
  }
  const char* const bytes = static_cast<const char*>(from.data);
  size_t first_large = count;
  size_t place = begin;
  uint64_t sum = 0;
  message.parts.resize(count);
  for (size_t i = 0; i < count; ++i) {
    uint64_t size = 0;
    std::memcpy(&size, bytes + i * sizeof size, sizeof size);
    const bool is_large = (size & kLarge) != 0;
    size &= ~kLarge;
    // Neither sum overflows: the limit is at most 2**61, and each iteration checks `place`.
    if (size > max_message_ || (sum += size) > max_message_) {
      throw Malformed("a message is larger than the " + std::to_string(max_message_) + "-byte limit");
    }
    message.parts[i].size = size;
    if (is_large) {
      if (size == 0) {
        throw Malformed("a large part of a message is empty");
      }
      first_large = std::min(first_large, i);
      ++message.missing;
      continue;
    }
    if (aligned(size) > from.size - place) {
      throw Malformed("a message is longer than its declared size");
    }
    message.parts[i].data = bytes + place;
    message.parts[i].owner = from.owner;
    place += aligned(size);
  }
  if (place != from.size) {
    throw Malformed("a message is shorter than its declared size");
  }
  message.has_sizes = true;
  for (const auto& [index, piece] : message.pieces) {
    match(message, index, piece.memory.size);
    message.missing -= piece.is_filled ? 1 : 0;
  }
  return first_large;
}

Incoming::Target Incoming::message(const void* header, size_t header_size, size_t payload_size) {
  const auto head = header_in<wire::Message>(header, header_size);
  Message& message = at(head.number);
  if (message.has_sizes || counts_.count(head.number) != 0) {
    throw Malformed("a message has arrived twice");
  }
  if (head.count > kMaxParts || head.in_header > 1) {
    throw Malformed("a message has too many parts");
  }
  if (head.in_header == 0) {
    if (header_size != sizeof head || payload_size > max_message_ + begin_of_parts(kMaxParts) + 16 * kMaxParts) {
      throw Malformed("a message is larger than the " + std::to_string(max_message_) + "-byte limit");
    }
    counts_[head.number] = head.count;
    return {head.number, kSmallParts, take_block(payload_size)};
  }
  const Part small = take_block(header_size - sizeof head);
  std::memcpy(bytes_of(small), static_cast<const char*>(header) + sizeof head, small.size);
  early_ -= message.pieces.size();
  for (const auto& [index, piece] : message.pieces) {
    early_bytes_ -= piece.memory.size;
  }
  const size_t first = read_sizes(message, head.count, small);
  match(message, first, payload_size);
  Piece& piece = message.pieces[first];
  if (piece.memory.data != nullptr) {
    throw Malformed("a part of a message has arrived twice");
  }
  piece.memory = take_large_block(payload_size);
  return {head.number, first, piece.memory};
}

Incoming::Target Incoming::part(const void* header, size_t header_size, size_t payload_size) {
  const auto head = header_in<PartOfMessage>(header, header_size);
  if (header_size != sizeof head) {
    throw Malformed("a part of a message has an invalid header");
  }
  return add(head, payload_size, take_large_block);
}

Incoming::Target Incoming::device_part(const void* header, size_t header_size, size_t payload_size,
                                       const DeviceAllocator& allocate) {
  const auto head = header_in<DevicePart>(header, header_size);
  if (header_size != sizeof head || head.type.back() != '\0' || head.device > INT16_MAX) {
    throw Malformed("a part on a device has an invalid header");
  }
  if (!allocate) {
    throw Malformed("a part is on a device, and this worker has no device maps");
  }
  return add(head.part, payload_size,
             [&](size_t size) { return allocate({head.type.data(), static_cast<int>(head.device)}, size); });
}

template <typename Take>
Incoming::Target Incoming::add(const PartOfMessage& head, size_t payload_size, Take take) {
  Message& message = at(head.number);
  if (head.index >= kMaxParts || payload_size == 0 || payload_size > max_message_) {
    throw Malformed("a part of a message has an invalid header");
  }
  if (message.pieces.count(head.index) != 0) {
    throw Malformed("a part of a message has arrived twice");
  }
  if (message.has_sizes) {
    match(message, head.index, payload_size);
  } else {
    early_bytes_ += payload_size;
    if (++early_ > kMostEarly || early_bytes_ > max_message_) {
      throw Malformed("too many parts have arrived before their message");
    }
  }
  Piece& piece = message.pieces[head.index];
  piece.memory = take(payload_size);
  return {head.number, head.index, piece.memory};
}

void Incoming::filled(const Target& target, std::vector<Parts>& complete) {
  const auto entry = messages_.find(target.number);
  if (entry == messages_.end()) {
    throw Malformed("a part belongs to no message");
  }
  Message& message = entry->second;
  if (target.index == kSmallParts) {
    early_ -= message.pieces.size();
    for (const auto& [index, piece] : message.pieces) {
      early_bytes_ -= piece.memory.size;
    }
    const auto count = counts_.extract(target.number);
    read_sizes(message, count.mapped(), target.memory);
  } else {
    message.pieces.at(target.index).is_filled = true;
    message.missing -= message.has_sizes ? 1 : 0;
  }
  while (!messages_.empty()) {
    const auto first = messages_.begin();
    if (first->first != next_ || !first->second.has_sizes || first->second.missing != 0) {
      return;
    }
    for (auto& [index, piece] : first->second.pieces) {
      first->second.parts[index] = std::move(piece.memory);
    }
    complete.push_back(std::move(first->second.parts));
    messages_.erase(first);
    ++next_;
  }
}

}  // namespace rpc_backends::ucx
