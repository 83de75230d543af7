#include "packed.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "wire.h"

namespace rpc_backends::zeromq {

using namespace wire;

Packed::Packed(Parts parts, uint64_t max_message, size_t largest_frame) : largest_frame_(largest_frame) {
  if (parts.size() > kMaxParts) {
    throw TransportError("a message of " + std::to_string(parts.size()) + " parts cannot be sent; " +
                         std::to_string(kMaxParts) + " is the limit");
  }
  uint64_t bytes = 0;
  size_t inside = begin_of_parts(parts.size());
  for (const Part& part : parts) {
    bytes += part.size;
    inside += part.size <= kMaxInHead ? aligned(part.size) : 0;
  }
  if (bytes > max_message) {
    throw TransportError("a message of " + std::to_string(bytes) + " bytes is larger than the " +
                         std::to_string(max_message) + " that a message may have");
  }
  head_ = Frame(inside);
  const size_t head_frames = (inside + largest_frame_ - 1) / largest_frame_;
  char* fields = write_header(head_, static_cast<uint8_t>(Kind::kMessage), parts.size(), head_frames);
  char* next = head_.data() + begin_of_parts(parts.size());
  std::fill(fields + parts.size() * sizeof(uint64_t), next, 0);
  for (Part& part : parts) {
    uint64_t field = part.size;
    place(std::move(part), field, next);
    std::memcpy(fields, &field, sizeof field);
    fields += sizeof field;
  }
  if (head_frames > 1) {
    split_head();
  }
}

// If the head is too long for one frame, the rest goes into the next ones.
void Packed::split_head() {
  Part rest = part_of(std::move(head_));
  head_ = Frame(rest, rest.data, largest_frame_);
  rest.data = static_cast<const char*>(rest.data) + largest_frame_;
  rest.size -= largest_frame_;
  frames_.insert(frames_.begin(), std::move(rest));
}

// Returns where the fields of the parts begin.
char* Packed::write_header(Frame& head, uint8_t kind, size_t count, size_t head_frames) {
  Header header;
  header.kind = kind;
  header.head_frames = static_cast<uint16_t>(head_frames);
  header.count = static_cast<uint32_t>(count);
  std::memcpy(head.data(), &header, sizeof header);
  return head.data() + sizeof header;
}

// Puts a part at `next` in the head or into a frame of its own, and records that in its field.
void Packed::place(Part part, uint64_t& field, char*& next) {
  if (part.size <= kMaxInHead) {
    if (part.size > 0) {
      std::memcpy(next, part.data, part.size);
      // Do not leak the previous contents of this memory.
      std::memset(next + part.size, 0, aligned(part.size) - part.size);
    }
    next += aligned(part.size);
    return;
  }
  const bool whole = part.size <= kMaxInMessage;
  field |= static_cast<uint64_t>(whole ? Place::kFrame : Place::kPieces) << kPlaceShift;
  (whole ? frames_ : in_pieces_).push_back(std::move(part));
}

Packed Packed::refusal(const std::string& reason) {
  const size_t length = std::min(reason.size(), kLongestReason);
  Packed packed(kLargestFrame);
  packed.head_ = Frame(sizeof(Header) + length);
  std::copy_n(reason.data(), length, write_header(packed.head_, static_cast<uint8_t>(Kind::kRefusal), 0, 1));
  return packed;
}

bool Packed::send(Socket& socket, const std::string& route) {
  if (!route.empty()) {
    Frame to(route.data(), route.size());
    if (!socket.send(to, true)) {
      return false;
    }
  }
  if (!socket.send(head_, !frames_.empty())) {
    return false;
  }
  begun_ = true;
  for (size_t i = 0; i < frames_.size(); ++i) {
    if (!send_frames(socket, frames_[i], 0, frames_[i].size, i + 1 < frames_.size())) {
      return false;
    }
  }
  for (const Part& part : in_pieces_) {
    if (!send_pieces(socket, route, part)) {
      return false;
    }
  }
  return true;
}

// Sends `size` bytes of a part, starting at `offset`.
bool Packed::send_frames(Socket& socket, const Part& part, size_t offset, size_t size, bool more) {
  for (const size_t end = offset + size; offset < end; offset += largest_frame_) {
    const size_t length = std::min(largest_frame_, end - offset);
    Frame frame(part, static_cast<const char*>(part.data) + offset, length);
    if (!socket.send(frame, more || offset + length < end)) {
      return false;
    }
  }
  return true;
}

bool Packed::send_pieces(Socket& socket, const std::string& route, const Part& part) {
  for (size_t offset = 0; offset < part.size; offset += kMaxInMessage) {
    if (!route.empty()) {
      Frame to(route.data(), route.size());
      if (!socket.send(to, true)) {
        return false;
      }
    }
    if (!send_frames(socket, part, offset, std::min(kMaxInMessage, part.size - offset), false)) {
      return false;
    }
  }
  return true;
}

}  // namespace rpc_backends::zeromq
