// For any bytes from a connection, the MessageReader returns messages or reports malformed input, and the
// result does not depend on how the bytes are split on the way.
//
// The first byte of an input says how the rest is split; the rest is the stream.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../../plugins/zeromq/csrc/message_reader.h"
#include "seeds.h"

namespace rpc_backends::zeromq {

namespace {

constexpr uint64_t kMaxMessage = 1 << 16;

// Returns the reader's results as text when the input arrives in pieces of `size` bytes.
std::string read_in_pieces(const uint8_t* data, size_t length, size_t size) {
  static int ends[2] = {-1, -1};
  if (ends[0] == -1) {
    check(::pipe2(ends, O_NONBLOCK) == 0);
  }
  static Channel channel(std::make_unique<Fd>(ends[0]));
  MessageReader reader(kMaxMessage);
  std::string read;
  bool over = false;
  for (size_t at = 0; at < length && !over;) {
    const size_t now = std::min(size, length - at);
    check(::write(ends[1], data + at, now) == static_cast<ssize_t>(now));
    at += now;
    // Reads until the reader is blocked twice in a row: the second call finds anything that the first has left.
    for (int blocked = 0; blocked < 2 && !over;) {
      const MessageReader::Outcome outcome = reader.next(channel);
      if (outcome == MessageReader::Outcome::kBlocked) {
        ++blocked;
        continue;
      }
      blocked = 0;
      check(outcome != MessageReader::Outcome::kEnd);
      over = outcome == MessageReader::Outcome::kMalformed;
      read += std::to_string(static_cast<int>(outcome));
      if (outcome == MessageReader::Outcome::kMessage) {
        uint64_t bytes = 0;
        for (const Part& part : reader.parts()) {
          bytes += part.size;
          read += ":" + std::to_string(part.size) + ":" + std::string(static_cast<const char*>(part.data), part.size);
          check(reinterpret_cast<uintptr_t>(part.data) % 16 == 0);
        }
        check(bytes <= kMaxMessage && bytes <= length);
      } else {
        check(reader.text().size() <= 500);
        read += reader.text();
      }
    }
  }
  for (char rest[4096]; ::read(ends[0], rest, sizeof rest) > 0;) {
  }
  return read;
}

std::string message(wire::Kind kind, const std::vector<size_t>& sizes) {
  wire::Header header;
  header.kind = static_cast<uint8_t>(kind);
  header.count = static_cast<uint32_t>(sizes.size());
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  for (const uint64_t size : sizes) {
    bytes.append(reinterpret_cast<const char*>(&size), sizeof size);
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    bytes.append(sizes[i], static_cast<char>('a' + i % 26));
  }
  return bytes;
}

std::vector<std::string> all_seeds() {
  wire::Header refusal;
  refusal.kind = static_cast<uint8_t>(wire::Kind::kRefusal);
  refusal.count = 3;
  const std::string seeds[] = {
      message(wire::Kind::kMessage, {}),
      message(wire::Kind::kMessage, {0, 1, 16, 0}),
      message(wire::Kind::kMessage, {100, 4096, 4097, 5000}),
      message(wire::Kind::kMessage, std::vector<size_t>(40, 3)) + message(wire::Kind::kPing, {}),
      message(wire::Kind::kPong, {}) + std::string(reinterpret_cast<const char*>(&refusal), sizeof refusal) + "why",
  };
  std::vector<std::string> all;
  for (const std::string& seed : seeds) {
    for (const char cut : {'\0', '\1', '\x2a'}) {
      all.push_back(cut + seed);
    }
  }
  return all;
}

}  // namespace

}  // namespace rpc_backends::zeromq

std::vector<std::string> seeds() {
  return rpc_backends::zeromq::all_seeds();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using rpc_backends::zeromq::read_in_pieces;
  if (size > 1) {
    const std::string whole = read_in_pieces(data + 1, size - 1, size);
    const size_t piece = std::max<size_t>(data[0] < 64 ? data[0] + 1 : data[0] * 37, size / 32);
    check(read_in_pieces(data + 1, size - 1, piece) == whole);
  }
  return 0;
}
