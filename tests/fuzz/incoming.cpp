// For any active messages on a link of UCX, Incoming returns messages or reports malformed input.
//
// An input is a list of active messages. The first byte of each says its kind, and whether its payload is put in
// place at once. Then come the size of its header and that of its payload, in two bytes each, and then both.
#include "../../plugins/ucx/csrc/incoming.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../../plugins/ucx/csrc/outgoing.h"
#include "seeds.h"

namespace rpc_backends::ucx {

namespace {

constexpr uint64_t kMaxMessage = 1 << 16;

void look_at(const std::vector<Parts>& complete) {
  for (const Parts& parts : complete) {
    uint64_t bytes = 0;
    unsigned sum = 0;
    for (const Part& part : parts) {
      bytes += part.size;
      check(reinterpret_cast<uintptr_t>(part.data) % 16 == 0);
      for (size_t i = 0; i < part.size; ++i) {
        sum += static_cast<const uint8_t*>(part.data)[i];
      }
    }
    check(bytes <= kMaxMessage);
    volatile unsigned used = sum;
    (void)used;
  }
}

void run(const uint8_t* data, size_t size) {
  Incoming incoming(kMaxMessage);
  std::vector<Parts> complete;
  std::vector<std::pair<Incoming::Target, std::vector<uint8_t>>> waiting;
  const auto fill = [&](const Incoming::Target& target, const std::vector<uint8_t>& payload) {
    check(target.memory.size == payload.size());
    std::copy(payload.begin(), payload.end(), static_cast<uint8_t*>(const_cast<void*>(target.memory.data)));
    incoming.filled(target, complete);
  };
  try {
    while (size >= 5) {
      const uint8_t how = data[0];
      uint16_t header_size = 0, payload_size = 0;
      std::memcpy(&header_size, data + 1, 2);
      std::memcpy(&payload_size, data + 3, 2);
      data += 5;
      size -= 5;
      header_size = static_cast<uint16_t>(std::min<size_t>(header_size, size));
      const std::vector<uint8_t> header(data, data + header_size);
      data += header_size;
      size -= header_size;
      payload_size = static_cast<uint16_t>(std::min<size_t>(payload_size, size));
      std::vector<uint8_t> payload(data, data + payload_size);
      data += payload_size;
      size -= payload_size;
      const auto target = (how & 1) != 0 ? incoming.message(header.data(), header.size(), payload.size())
                                         : incoming.part(header.data(), header.size(), payload.size());
      if ((how & 2) != 0) {
        fill(target, payload);
      } else {
        waiting.emplace_back(target, std::move(payload));
      }
    }
    for (; !waiting.empty(); waiting.pop_back()) {
      fill(waiting.back().first, waiting.back().second);
    }
  } catch (const Malformed&) {
  }
  look_at(complete);
}

// Messages of all kinds.
std::vector<std::string> all_seeds() {
  std::vector<std::string> written;
  const std::vector<std::vector<size_t>> all{
      {}, {0}, {5}, {5, 0, 100}, {5000}, {10, 5000}, {10, 5000, 6000, 3}, {4096, 4096, 4096}};
  for (const auto& sizes : all) {
    for (const uint8_t at_once : {0, 2}) {
      for (const size_t max_header : {size_t{0}, size_t{6144}}) {
        std::string& seed = written.emplace_back();
        for (uint64_t message = 0; message < 2; ++message) {
          Parts parts;
          for (const size_t size : sizes) {
            auto owner = std::make_shared<std::string>(size, 'x');
            parts.push_back({owner->data(), size, owner});
          }
          Outgoing outgoing(std::move(parts), max_header);
          for (const auto& piece : outgoing.pieces({1, 2}, message)) {
            const uint8_t how = (piece.kind == wire::Kind::kMessage ? 1 : 0) | at_once;
            const auto header_size = static_cast<uint16_t>(piece.header_size);
            const auto payload_size = static_cast<uint16_t>(piece.size);
            seed.push_back(static_cast<char>(how));
            seed.append(reinterpret_cast<const char*>(&header_size), 2);
            seed.append(reinterpret_cast<const char*>(&payload_size), 2);
            seed.append(static_cast<const char*>(piece.header), header_size);
            seed.append(static_cast<const char*>(piece.data), payload_size);
          }
        }
      }
    }
  }
  return written;
}

}  // namespace

}  // namespace rpc_backends::ucx

std::vector<std::string> seeds() {
  return rpc_backends::ucx::all_seeds();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rpc_backends::ucx::run(data, size);
  return 0;
}
