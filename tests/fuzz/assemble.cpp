// For any frames from a ZeroMQ connection, the Assembler returns messages or reports malformed input. A message
// has the stated length, and packed messages are unpacked unchanged. The socket is not libzmq's: it returns
// the frames of the input.
//
// An input is a list of frames. Each has two bytes, with 15 bits of its size and one bit that says whether the
// message has another frame, then its contents. The first byte of the input says whether the rest is packed
// too, and into how many parts.
#include <sanitizer/asan_interface.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "assembler.h"
#include "memory_libzmq.h"
#include "packed.h"
#include "route.h"
#include "wire.h"

namespace rpc_backends::zeromq {

namespace {

constexpr uint64_t kMaxMessage = 1 << 16;
// Small, so that heads and parts take several frames.
constexpr size_t kSmallFrame = 1000;

FUZZER void read_all(const Parts& parts) {
  uint64_t bytes = 0;
  for (const Part& part : parts) {
    bytes += part.size;
    if (__asan_region_is_poisoned(const_cast<void*>(part.data), part.size) != nullptr) {
      std::abort();
    }
  }
  if (bytes > kMaxMessage || parts.size() > wire::kMaxParts) {
    std::abort();
  }
}

// Reads the wire as a connection does. Pieces are completed late and out of order, as threads may do.
FUZZER std::vector<Parts> read_wire(Socket& socket) {
  Assembler assembler(kMaxMessage);
  std::vector<Parts> messages;
  std::vector<Piece> pieces;
  const auto put_all = [&] {
    for (; !pieces.empty(); pieces.pop_back()) {
      if (std::optional<Parts> parts = pieces.back().put()) {
        messages.push_back(std::move(*parts));
      }
    }
  };
  for (;;) {
    Frame first;
    if (!socket.receive(first)) {
      break;
    }
    Assembler::Outcome outcome = assembler.take(std::move(first), socket);
    if (outcome.kind == Assembler::Outcome::Kind::kMessage) {
      messages.push_back(std::move(outcome.parts));
    } else if (outcome.kind == Assembler::Outcome::Kind::kPiece) {
      pieces.push_back(std::move(*outcome.piece));
      if (pieces.size() >= 4) {
        put_all();
      }
    } else if (outcome.kind != Assembler::Outcome::Kind::kNothing) {
      if (outcome.text.size() > 500) {
        std::abort();
      }
      break;  // the connection reads no more
    }
  }
  put_all();
  wire.frames.clear();
  for (const Parts& parts : messages) {
    read_all(parts);
  }
  return messages;
}

FUZZER void fill_wire(const uint8_t* data, size_t size) {
  while (size >= 2) {
    const size_t word = data[0] | (data[1] << 8);
    const size_t length = std::min(word & 0x7fff, size - 2);
    wire.frames.push_back({std::string(reinterpret_cast<const char*>(data) + 2, length), (word & 0x8000) != 0});
    data += 2 + length;
    size -= 2 + length;
  }
}

// Splits the input into the parts of a message; parts of different sizes travel differently.
FUZZER Parts parts_of(const uint8_t* data, size_t size, size_t count) {
  Parts parts;
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = size * i / count;
    const size_t length = size * (i + 1) / count - begin;
    auto owner = std::make_shared<std::string>(reinterpret_cast<const char*>(data) + begin, length);
    parts.push_back({owner->data(), owner->size(), owner});
  }
  return parts;
}

FUZZER bool same(const Parts& one, const Parts& other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end(), [](const Part& a, const Part& b) {
    return a.size == b.size && (a.size == 0 || std::memcmp(a.data, b.data, a.size) == 0);
  });
}

Socket& the_socket() {
  static Context context(1);
  static Socket socket(context, socket_type::kDealer);
  return socket;
}

void write_seeds(const std::filesystem::path& folder) {
  int number = 0;
  const auto write = [&](char first) {
    std::string input{first};
    for (const Wire::Sent& frame : wire.frames) {
      const size_t word = std::min<size_t>(frame.bytes.size(), 0x7fff) | (frame.more ? 0x8000 : 0);
      input += static_cast<char>(word & 0xff);
      input += static_cast<char>(word >> 8);
      input += frame.bytes.substr(0, 0x7fff);
    }
    std::ofstream(folder / ("seed" + std::to_string(number++)), std::ios::binary) << input;
  };
  for (const std::vector<size_t>& sizes :
       std::vector<std::vector<size_t>>{{}, {0}, {5}, {16, 17}, {100, 0, 30}, {4097}, {10, 5000, 20}, {4097, 4098}}) {
    Parts parts;
    for (const size_t size : sizes) {
      auto owner = std::make_shared<std::string>(size, 'p');
      parts.push_back({owner->data(), owner->size(), owner});
    }
    wire.frames.clear();
    Packed(parts, kMaxMessage, kSmallFrame).send(the_socket(), "");
    write(static_cast<char>(sizes.size()));
    wire.frames.clear();
    Packed(parts, kMaxMessage).send(the_socket(), "");
    write(static_cast<char>(sizes.size()));
    // The same in pieces, as larger messages arrive.
    if (sizes == std::vector<size_t>{100, 0, 30}) {
      std::string& head = wire.frames[0].bytes;
      head[sizeof(wire::Header) + 7] = static_cast<char>(0x80);
      head.erase(wire::begin_of_parts(3), wire::aligned(100));
      wire.frames.push_back({std::string(60, 'q'), false});
      wire.frames.push_back({std::string(40, 'r'), false});
      write(3);
    }
  }
  wire.frames.clear();
  Packed::refusal("no").send(the_socket(), "");
  write(0);
  wire.frames.clear();
  wire.frames.push_back({Route::make(3).text, false});
  write(0);
  wire.frames.clear();
}

}  // namespace

}  // namespace rpc_backends::zeromq

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  if (const char* folder = std::getenv("FUZZ_WRITE_SEEDS")) {
    rpc_backends::zeromq::write_seeds(folder);
    std::exit(0);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rpc_backends::zeromq;
  if (size == 0) {
    return 0;
  }
  if (const auto route = Route::parse(data, size)) {
    if (route->worker < 0 || route->text.size() != size) {
      std::abort();
    }
  }
  fill_wire(data + 1, size - 1);
  read_wire(the_socket());
  if (data[0] < 192) {
    return 0;
  }
  const auto parts = parts_of(data + 1, size - 1, data[0] % 8);
  Packed(parts, kMaxMessage, data[0] & 8 ? kSmallFrame : wire::kLargestFrame).send(the_socket(), "");
  const auto found = read_wire(the_socket());
  if (found.size() != 1 || !same(found[0], parts)) {
    std::abort();
  }
  return 0;
}
