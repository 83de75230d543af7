#include "assembler.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "rpc_backends_agents/blocks.h"
#include "wire.h"

namespace rpc_backends::zeromq {

using namespace wire;

namespace {

// Smaller frames are copied: libzmq may keep them at any address in a buffer shared with others, and one frame
// keeps the whole buffer alive. Larger frames are aligned to 8 bytes.
constexpr size_t kSharedBuffer = 8192;

class Malformed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

Header header_of(Frame& head) {
  Header header;
  std::memcpy(&header, head.data(), sizeof header);
  return header;
}

struct Field {
  uint64_t size;
  Place place;
};

Field field_of(Frame& head, size_t part) {
  uint64_t field = 0;
  std::memcpy(&field, head.data() + sizeof(Header) + part * sizeof field, sizeof field);
  return {field & kSizeMask, static_cast<Place>(field >> kPlaceShift)};
}

// Returns the contents of a frame from `begin` on.
Part inside_of(Frame frame, size_t begin) {
  const size_t size = frame.size() - std::min(frame.size(), begin);
  if (frame.size() < kSharedBuffer) {
    return copy_of(frame.data() + begin, size);
  }
  Part inside = part_of(std::move(frame));
  inside.data = static_cast<const char*>(inside.data) + begin;
  inside.size = size;
  return inside;
}

// Reads all other frames of a message, valid or not, and returns the message.
std::vector<Frame> read_rest(Frame first, Socket& socket) {
  bool more = first.more();
  std::vector<Frame> frames;
  frames.push_back(std::move(first));
  while (more) {
    Frame frame;
    if (!socket.receive(frame)) {
      break;
    }
    more = frame.more();
    if (frames.size() <= 2 * kMaxParts) {
      frames.push_back(std::move(frame));
    }
  }
  return frames;
}

using FrameIterator = std::vector<Frame>::iterator;

size_t size_of(FrameIterator begin, FrameIterator end) {
  return std::accumulate(begin, end, size_t{0}, [](size_t sum, const Frame& frame) { return sum + frame.size(); });
}

// Returns the number of bytes.
size_t copy_frames(FrameIterator begin, FrameIterator end, char* place) {
  char* next = place;
  for (; begin != end; ++begin) {
    next = std::copy_n(begin->data(), begin->size(), next);
    *begin = Frame();
  }
  return static_cast<size_t>(next - place);
}

// Returns the head of a message as one frame. Afterwards `frames` holds only the frames behind the head.
Frame take_head(std::vector<Frame>& frames) {
  const size_t count = header_of(frames.front()).head_frames;
  if (count == 0 || count > frames.size()) {
    throw Malformed("a part of the head of a message is missing");
  }
  const auto end = frames.begin() + static_cast<ptrdiff_t>(count);
  Frame head;
  if (count == 1) {
    head = std::move(frames.front());
  } else {
    head = Frame(size_of(frames.begin(), end));
    copy_frames(frames.begin(), end, head.data());
  }
  frames.erase(frames.begin(), end);
  return head;
}

// Returns the end of a part of `size` bytes that starts with the frame `begin`.
FrameIterator end_of_part(FrameIterator begin, FrameIterator end, size_t size) {
  for (size_t found = 0; begin != end;) {
    found += begin++->size();
    if (found == size) {
      return begin;
    }
    if (found > size) {
      break;
    }
  }
  throw Malformed("a frame of a message is missing or does not have its declared size");
}

Part part_in(FrameIterator begin, FrameIterator end, size_t size) {
  if (end - begin == 1) {
    return inside_of(std::move(*begin), 0);
  }
  const Part part = take_block(size);
  copy_frames(begin, end, static_cast<char*>(const_cast<void*>(part.data)));
  return part;
}

}  // namespace

std::optional<Parts> Piece::put() {
  const size_t size = copy_frames(frames_.begin(), frames_.end(), place_);
  frames_.clear();
  if (message_->missing.fetch_sub(size, std::memory_order_acq_rel) != size) {
    return std::nullopt;
  }
  return std::move(message_->parts);
}

Assembler::Outcome Assembler::take(Frame first, Socket& socket) {
  std::vector<Frame> frames = read_rest(std::move(first), socket);
  Outcome outcome;
  try {
    if (!progress_.message) {
      return start(std::move(frames));
    }
    return take_piece(std::move(frames));
  } catch (const Malformed& error) {
    outcome.text = error.what();
  } catch (const std::bad_alloc&) {
    outcome.text = "not enough memory for a message";
  }
  progress_ = Progress();
  outcome.kind = Outcome::Kind::kMalformed;
  return outcome;
}

Assembler::Outcome Assembler::take_piece(std::vector<Frame> frames) {
  const Part& part = progress_.message->parts[progress_.parts[progress_.current]];
  const size_t size = size_of(frames.begin(), frames.end());
  if (size == 0 || size > part.size - progress_.offset) {
    throw Malformed("a piece of a message is of a wrong size");
  }
  char* const place = static_cast<char*>(const_cast<void*>(part.data)) + progress_.offset;
  Outcome outcome;
  outcome.kind = Outcome::Kind::kPiece;
  outcome.piece.emplace(progress_.message, place, std::move(frames));
  progress_.offset += size;
  if (progress_.offset == part.size) {
    progress_.offset = 0;
    if (++progress_.current == progress_.parts.size()) {
      progress_ = Progress();
    }
  }
  return outcome;
}

// Throws if the head contradicts itself. Afterwards all sizes are valid.
void Assembler::check(Frame& head, std::vector<Frame>& frames) const {
  const size_t count = header_of(head).count;
  if (count > kMaxParts || begin_of_parts(count) > head.size()) {
    throw Malformed("a message has too many parts");
  }
  size_t end = begin_of_parts(count);
  auto next_frame = frames.begin();
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto [size, place] = field_of(head, i);
    // Each is less than a quarter of the range, so the sum does not overflow.
    bytes += size;
    if (bytes > max_message_) {
      throw Malformed("a message is larger than the " + std::to_string(max_message_) + "-byte limit");
    }
    if (place == Place::kHead) {
      end += aligned(size);
    } else if (place == Place::kFrame) {
      next_frame = end_of_part(next_frame, frames.end(), size);
    } else if (place != Place::kPieces || size == 0) {
      throw Malformed("a part of a message has an invalid location");
    }
  }
  if (end != head.size() || next_frame != frames.end()) {
    throw Malformed("a message is longer than its declared size");
  }
}

Assembler::Outcome Assembler::start(std::vector<Frame> frames) {
  Outcome outcome;
  Frame& head = frames.front();
  const bool known = head.size() >= sizeof(Header) && header_of(head).version == kVersion;
  const auto kind = known ? std::optional(static_cast<Kind>(header_of(head).kind)) : std::nullopt;
  if (kind == Kind::kRefusal) {
    outcome.kind = Outcome::Kind::kRefusal;
    outcome.text.assign(head.data() + sizeof(Header), std::min(head.size() - sizeof(Header), kLongestReason));
    return outcome;
  }
  if (kind != Kind::kMessage) {
    throw Malformed("the data is not a message of this protocol version");
  }
  Frame whole = take_head(frames);
  check(whole, frames);
  Progress progress;
  Parts parts = place(std::move(whole), std::move(frames), progress.parts);
  if (progress.parts.empty()) {
    outcome.kind = Outcome::Kind::kMessage;
    outcome.parts = std::move(parts);
    return outcome;
  }
  progress.message = std::make_shared<Unfinished>();
  for (const size_t i : progress.parts) {
    progress.message->missing += parts[i].size;
  }
  progress.message->parts = std::move(parts);
  progress_ = std::move(progress);
  return outcome;
}

// Allocates memory for each part of a checked message, and fills it unless the part comes in pieces.
Parts Assembler::place(Frame head, std::vector<Frame> frames, std::vector<size_t>& in_pieces) const {
  Parts parts(header_of(head).count);
  auto next_frame = frames.begin();
  bool inside_any = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto [size, place] = field_of(head, i);
    if (place == Place::kFrame) {
      const auto begin = std::exchange(next_frame, end_of_part(next_frame, frames.end(), size));
      parts[i] = part_in(begin, next_frame, size);
    } else if (place == Place::kPieces) {
      parts[i] = take_block(size);
      in_pieces.push_back(i);
    } else {
      parts[i].size = size;
      inside_any = true;
    }
  }
  if (!inside_any) {
    return parts;
  }
  const Part inside = inside_of(std::move(head), begin_of_parts(parts.size()));
  const char* next = static_cast<const char*>(inside.data);
  for (Part& part : parts) {
    if (!part.owner) {
      part = {next, part.size, inside.owner};
      next += aligned(part.size);
    }
  }
  return parts;
}

}  // namespace rpc_backends::zeromq
