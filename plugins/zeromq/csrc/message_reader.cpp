#include "message_reader.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "part_memory.h"

namespace rpc_backends::zeromq {

using namespace wire;

namespace {

// Buffers that one read fills. A message with more parts needs several reads.
constexpr size_t kMaxPlaces = 16;
// Bytes of parts that one read takes. The kernel clears new memory while it reads, which can take long, and other
// sockets wait meanwhile.
constexpr size_t kMaxRead = size_t{1} << 20;

}  // namespace

MessageReader::Outcome MessageReader::next(Channel& channel) {
  Outcome outcome = parse();
  if (outcome != Outcome::kBlocked) {
    return outcome;
  }
  if (!drained_) {
    outcome = read(channel);
    if (outcome != Outcome::kPart) {
      return outcome;
    }
    outcome = parse();
    if (outcome != Outcome::kBlocked) {
      return outcome;
    }
  }
  return std::exchange(drained_, false) ? Outcome::kBlocked : Outcome::kPart;
}

// Returns kPart if it read data.
MessageReader::Outcome MessageReader::read(Channel& channel) {
  iovec places[kMaxPlaces + 1];
  size_t count = stage_ == Stage::kParts ? list_places(places, kMaxPlaces) : 0;
  // Move the data that parse() has not used to the front.
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  places[count++] = {buffer_.data() + end_, buffer_.size() - end_};
  size_t room = 0;
  for (size_t i = 0; i < count; ++i) {
    room += places[i].iov_len;
  }
  const ssize_t got = channel.read(places, static_cast<int>(count), drained_);
  if (got == -1 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    return Outcome::kBlocked;
  }
  if (got <= 0) {
    const int error = got == 0 ? 0 : errno;
    text_ = error == EBADMSG ? "the data that arrived was changed on its way" : error == ETIMEDOUT ? kNoHeartbeat : "";
    return Outcome::kEnd;
  }
  const auto size = static_cast<size_t>(got);
  bytes_read_ += size;
  const size_t placed = std::min(size, room - places[count - 1].iov_len);
  advance(placed);
  end_ += size - placed;
  return Outcome::kPart;
}

MessageReader::Outcome MessageReader::parse() {
  try {
    return parse_buffer();
  } catch (const std::bad_alloc&) {
    return malformed("not enough memory for a message");
  } catch (const BadPiece& error) {
    return malformed(error.what());
  }
}

MessageReader::Outcome MessageReader::parse_buffer() {
  for (;;) {
    switch (stage_) {
      case Stage::kHeader: {
        if (end_ - begin_ < sizeof(Header)) {
          return Outcome::kBlocked;
        }
        const Outcome outcome = begin();
        if (outcome != Outcome::kBlocked) {
          return outcome;
        }
        break;
      }
      case Stage::kPieceHead:
        if (!take(&piece_, sizeof piece_)) {
          return Outcome::kBlocked;
        }
        stage_ = Stage::kSizes;
        break;
      case Stage::kSizes: {
        const size_t wanted = sizes_.size() * sizeof(uint64_t);
        const size_t now = std::min(wanted - sizes_read_, end_ - begin_);
        take(reinterpret_cast<char*>(sizes_.data()) + sizes_read_, now);
        sizes_read_ += now;
        if (sizes_read_ < wanted) {
          return Outcome::kBlocked;
        }
        const Outcome outcome = is_piece_ ? begin_piece() : begin_parts();
        if (outcome != Outcome::kBlocked) {
          return outcome;
        }
        break;
      }
      case Stage::kParts:
        return fill_parts();
      case Stage::kText: {
        const size_t now = std::min(text_.size() - offset_, end_ - begin_);
        take(text_.data() + offset_, now);
        offset_ += now;
        if (offset_ < text_.size()) {
          return Outcome::kBlocked;
        }
        stage_ = Stage::kHeader;
        return Outcome::kRefusal;
      }
    }
  }
}

bool MessageReader::take(void* to, size_t size) {
  if (end_ - begin_ < size) {
    return false;
  }
  if (size > 0) {
    std::memcpy(to, buffer_.data() + begin_, size);
    begin_ += size;
  }
  return true;
}

// Returns kBlocked if there is more to parse.
MessageReader::Outcome MessageReader::begin() {
  Header header;
  take(&header, sizeof header);
  if (header.version != kVersion) {
    return malformed("the data is not a message of this protocol version");
  }
  offset_ = 0;
  switch (static_cast<Kind>(header.kind)) {
    case Kind::kMessage:
    case Kind::kPiece:
      is_piece_ = static_cast<Kind>(header.kind) == Kind::kPiece;
      return begin_message(header.count);
    case Kind::kRefusal:
      if (header.count > kLongestReason) {
        return malformed("a refusal is too long");
      }
      text_.assign(header.count, '\0');
      stage_ = Stage::kText;
      return Outcome::kBlocked;
    case Kind::kPing:
    case Kind::kPong:
      if (header.count != 0) {
        return malformed("a heartbeat has parts");
      }
      return static_cast<Kind>(header.kind) == Kind::kPing ? Outcome::kPing : Outcome::kPong;
  }
  return malformed("the data is not a message of this protocol version");
}

MessageReader::Outcome MessageReader::begin_message(size_t count) {
  if (count > kMaxParts) {
    return malformed("a message has too many parts");
  }
  if (is_piece_ && !assembly_) {
    return malformed("a message is in pieces, and this connection takes none");
  }
  sizes_.assign(count, 0);
  sizes_read_ = 0;
  stage_ = is_piece_ ? Stage::kPieceHead : Stage::kSizes;
  return Outcome::kBlocked;
}

// Allocates memory for each part.
MessageReader::Outcome MessageReader::begin_parts() {
  uint64_t bytes = 0;
  for (const uint64_t size : sizes_) {
    if (size > max_message_ || (bytes += size) > max_message_) {
      return malformed("a message is larger than the " + std::to_string(max_message_) + "-byte limit");
    }
  }
  parts_ = take_parts(sizes_);
  part_ = 0;
  offset_ = 0;
  stage_ = Stage::kParts;
  return Outcome::kBlocked;
}

// Gets the places for the bytes of a piece.
MessageReader::Outcome MessageReader::begin_piece() {
  parts_ = assembly_().begin(piece_, sizes_);
  part_ = 0;
  offset_ = 0;
  stage_ = Stage::kParts;
  return Outcome::kBlocked;
}

MessageReader::Outcome MessageReader::fill_parts() {
  while (part_ < parts_.size()) {
    const Part& part = parts_[part_];
    const size_t now = std::min(part.size - offset_, end_ - begin_);
    take(static_cast<char*>(const_cast<void*>(part.data)) + offset_, now);
    offset_ += now;
    if (offset_ < part.size) {
      return Outcome::kBlocked;
    }
    ++part_;
    offset_ = 0;
  }
  stage_ = Stage::kHeader;
  return finish_parts();
}

MessageReader::Outcome MessageReader::finish_parts() {
  if (!is_piece_) {
    return Outcome::kMessage;
  }
  auto message = assembly_().finish(piece_.message);
  parts_ = message ? std::move(*message) : Parts();
  return message ? Outcome::kMessage : Outcome::kPart;
}

// Returns where the next bytes belong.
size_t MessageReader::list_places(iovec* places, size_t most) {
  size_t count = 0, bytes = 0;
  for (size_t i = part_; i < parts_.size() && count < most && bytes < kMaxRead; ++i) {
    const size_t filled = i == part_ ? offset_ : 0;
    const size_t size = std::min(parts_[i].size - filled, kMaxRead - bytes);
    if (size > 0) {
      places[count++] = {static_cast<char*>(const_cast<void*>(parts_[i].data)) + filled, size};
      bytes += size;
    }
  }
  return count;
}

size_t MessageReader::bytes_left(size_t most) const {
  size_t left = 0, filled = offset_;
  for (size_t i = part_; stage_ == Stage::kParts && i < parts_.size() && left < most; ++i, filled = 0) {
    left += parts_[i].size - filled;
  }
  return left;
}

// Records that `size` bytes of the parts have arrived.
void MessageReader::advance(size_t size) {
  while (size > 0) {
    const size_t now = std::min(size, parts_[part_].size - offset_);
    size -= now;
    offset_ += now;
    if (offset_ == parts_[part_].size) {
      ++part_;
      offset_ = 0;
    }
  }
}

MessageReader::Outcome MessageReader::malformed(const std::string& how) {
  text_ = how;
  parts_.clear();
  return Outcome::kMalformed;
}

}  // namespace rpc_backends::zeromq
