#include "assembly.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "part_memory.h"

namespace rpc_backends::zeromq {

using wire::PieceHead;

namespace {

constexpr uint64_t kConnections = wire::kMaxLanes + 1;

// Checks the numbers of a piece alone. Returns how many bytes of its last part come before its end.
uint64_t check(const PieceHead& head, const std::vector<uint64_t>& sizes) {
  if (head.parts > wire::kMaxParts || sizes.empty() || head.first >= head.parts ||
      sizes.size() > head.parts - head.first || head.size > head.total) {
    throw BadPiece("a piece has parts that its message has not");
  }
  if (head.offset > sizes.front() || (head.offset == sizes.front() && head.offset > 0)) {
    throw BadPiece("a piece begins behind its part");
  }
  // All parts but the last one reach to their ends.
  uint64_t left = head.size;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const uint64_t size = sizes[i] - (i == 0 ? head.offset : 0);
    if (sizes[i] > head.total || (i + 1 < sizes.size() && size > left)) {
      throw BadPiece("the sizes of a piece do not fit together");
    }
    if (i + 1 == sizes.size()) {
      if (size < left || (left == 0 && size > 0)) {
        throw BadPiece("the sizes of a piece do not fit together");
      }
      left += i == 0 ? head.offset : 0;
      break;
    }
    left -= size;
  }
  const bool is_last = head.first + sizes.size() == head.parts && left == sizes.back();
  if (head.size < wire::kLeastPiece && !is_last) {
    throw BadPiece("a piece is too short");
  }
  return left;
}

}  // namespace

Assembly::Assembly(uint64_t max_message)
    : max_message_(max_message),
      max_bytes_(max_message > UINT64_MAX / kConnections ? UINT64_MAX : max_message * kConnections) {}

Assembly::Message& Assembly::find_or_add(const PieceHead& head) {
  const auto entry = messages_.find(head.message);
  if (entry != messages_.end()) {
    Message& message = entry->second;
    if (message.total != head.total || message.parts.size() != head.parts) {
      throw BadPiece("a piece differs from the others of its message");
    }
    return message;
  }
  if (head.total > max_message_) {
    throw BadPiece("a message is larger than the " + std::to_string(max_message_) + "-byte limit");
  }
  if (messages_.size() >= kMost || head.total > max_bytes_ - bytes_ ||
      head.parts > kConnections * wire::kMaxParts - parts_) {
    throw BadPiece("too many messages are unfinished");
  }
  Message message;
  message.total = head.total;
  message.parts.resize(head.parts);
  message.has_size.resize(head.parts);
  bytes_ += head.total;
  parts_ += head.parts;
  return messages_.emplace(head.message, std::move(message)).first->second;
}

// Marks the bytes as those of a piece.
void Assembly::take_range(Message& message, Position from, Position to) {
  auto next = message.taken.lower_bound(from);
  const auto before = next == message.taken.begin() ? message.taken.end() : std::prev(next);
  if ((next != message.taken.end() && (next->first < to || next->first == from)) ||
      (before != message.taken.end() && before->second > from)) {
    throw BadPiece("a piece came twice");
  }
  if (next != message.taken.end() && next->first == to) {
    to = next->second;
    message.taken.erase(next);
  }
  if (before != message.taken.end() && before->second == from) {
    before->second = std::move(to);
  } else {
    message.taken.emplace(from, to);
  }
}

Parts Assembly::begin(const PieceHead& head, const std::vector<uint64_t>& sizes) {
  const uint64_t in_last = check(head, sizes);
  std::lock_guard<std::mutex> lock(mutex_);
  Message& message = find_or_add(head);
  std::vector<uint64_t> unknown;
  uint64_t more = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const size_t part = head.first + i;
    if (!message.has_size[part]) {
      unknown.push_back(sizes[i]);
      // The sum cannot overflow: each is at most `total`, and so is the sum before.
      more += sizes[i];
      if (more > message.total - message.known) {
        throw BadPiece("the parts of a message are larger than the message");
      }
    } else if (message.parts[part].size != sizes[i]) {
      throw BadPiece("a piece differs from the others of its message");
    }
  }
  const uint64_t last = head.first + sizes.size() - 1;
  const Position from{head.first, head.offset};
  const Position to = in_last == sizes.back() ? Position{last + 1, 0} : Position{last, in_last};
  take_range(message, from, to);
  Parts made = take_parts(unknown);
  message.known += more;
  Parts places;
  places.reserve(sizes.size());
  auto next = made.begin();
  uint64_t left = head.size;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const size_t number = head.first + i;
    Part& part = message.parts[number];
    if (!message.has_size[number]) {
      part = std::move(*next++);
      message.has_size[number] = true;
    }
    const uint64_t offset = i == 0 ? head.offset : 0;
    const uint64_t size = std::min(left, part.size - offset);
    places.push_back({static_cast<const char*>(part.data) + offset, size, part.owner});
    left -= size;
  }
  ++message.arriving;
  return places;
}

std::optional<Parts> Assembly::finish(uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = messages_.find(number);
  Message& message = entry->second;
  --message.arriving;
  const auto& taken = message.taken;
  const bool is_whole = taken.size() == 1 && taken.begin()->first == Position{0, 0} &&
                        taken.begin()->second == Position{message.parts.size(), 0};
  if (message.arriving > 0 || !is_whole) {
    return std::nullopt;
  }
  if (message.known != message.total) {
    throw BadPiece("the parts of a message are smaller than the message");
  }
  Parts parts = std::move(message.parts);
  parts_ -= parts.size();
  bytes_ -= message.total;
  messages_.erase(entry);
  return parts;
}

}  // namespace rpc_backends::zeromq
