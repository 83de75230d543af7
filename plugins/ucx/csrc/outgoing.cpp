#include "outgoing.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace rpc_backends::ucx {

using namespace wire;

namespace {

bool is_separate(const Part& part) {
  return part.size > kMaxSmall || !part.memory.is_host();
}

}  // namespace

Outgoing::Outgoing(Parts all, size_t max_header) : parts(std::move(all)) {
  if (parts.size() > kMaxParts) {
    throw TransportError("a message has " + std::to_string(parts.size()) + " parts; at most " +
                         std::to_string(kMaxParts) + " are possible");
  }
  size_t size = sizeof(Message) + begin_of_parts(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    bytes_ += parts[i].size;
    if (is_separate(parts[i])) {
      large_.push_back(i);
    } else {
      size += aligned(parts[i].size);
    }
  }
  in_header_ = !large_.empty() && parts[large_[0]].memory.is_host() && size <= max_header;
  head_size_ = size;
  head_ = std::make_unique_for_overwrite<char[]>(size);
  char* const sizes = head_.get() + sizeof(Message);
  char* next = sizes + begin_of_parts(parts.size());
  std::memset(sizes, 0, static_cast<size_t>(next - sizes));
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool separate = is_separate(parts[i]);
    const uint64_t field = parts[i].size | (separate ? kLarge : 0);
    std::memcpy(sizes + i * sizeof field, &field, sizeof field);
    if (separate) {
      continue;
    }
    const size_t whole = aligned(parts[i].size);
    if (parts[i].size != 0) {
      std::memcpy(next, parts[i].data, parts[i].size);
    }
    std::memset(next + parts[i].size, 0, whole - parts[i].size);
    next += whole;
  }
}

std::vector<Outgoing::Piece> Outgoing::pieces(Token of_link, uint64_t number) {
  Message head;
  head.token = of_link;
  head.number = number;
  head.count = static_cast<uint32_t>(parts.size());
  head.in_header = in_header_ ? 1 : 0;
  std::memcpy(head_.get(), &head, sizeof head);
  std::vector<Piece> all;
  const size_t first = in_header_ ? 1 : 0;
  all.reserve(1 + large_.size());
  if (in_header_) {
    const Part& part = parts[large_[0]];
    all.push_back({Kind::kMessage, head_.get(), head_size_, part.data, part.size});
  } else {
    all.push_back({Kind::kMessage, head_.get(), sizeof head, head_.get() + sizeof head, head_size_ - sizeof head});
  }
  part_heads_.resize(large_.size());
  for (size_t i = first; i < large_.size(); ++i) {
    const Part& part = parts[large_[i]];
    DevicePart& head = part_heads_[i];
    head.part = {of_link, number, large_[i]};
    if (part.memory.is_host()) {
      all.push_back({Kind::kPart, &head.part, sizeof head.part, part.data, part.size});
      continue;
    }
    const std::string type = part.target.type;
    head.device = static_cast<uint32_t>(part.target.index);
    std::memcpy(head.type.data(), type.data(), std::min(type.size(), head.type.size() - 1));
    all.push_back({Kind::kDevicePart, &head, sizeof head, part.data, part.size, part.memory});
  }
  return all;
}

}  // namespace rpc_backends::ucx
