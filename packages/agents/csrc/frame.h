// The frame of a message: what stands before its payload and its tensors, and the limits that hold for it.
//
// A message travels as parts. The first holds this head, the descriptions of the tensors, and whatever is
// small: the payload and the storages that are flagged as inline, one after the other. What is larger has
// a part of its own: the payload first, then the storages in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bytes.h"
#include "rpc_backends_agents/transport.h"

namespace rpc_backends {

enum class FrameKind : uint8_t { kRequest = 1, kResponse = 2 };

// What the interceptor of a name has attached to a request.
struct Context {
  std::string name;
  std::string bytes;
};

using Contexts = std::vector<Context>;

// The bytes that contexts take in a frame.
size_t size_of(const Contexts& contexts);
void write(const Contexts& contexts, Writer& out);
Contexts read_contexts(Reader in);

struct Head {
  static constexpr uint32_t kMagic = 0x42435052;  // "RPCB"
  static constexpr uint8_t kVersion = 1;

  FrameKind kind = FrameKind::kRequest;
  bool payload_inline = false;
  int32_t type = 0;
  uint32_t tensors = 0;
  uint32_t storages = 0;
  uint32_t context_size = 0;
  uint64_t call = 0;
  uint64_t payload_size = 0;
  uint64_t description_size = 0;

  void write(Writer& out) const;
  static Head read(Reader& in);
};

// How many tensors a message can have.
inline constexpr uint32_t kMaxTensors = uint32_t{1} << 20;

// What a frame may ask for. A frame beyond it is refused before anything is allocated for it.
struct Limits {
  uint64_t message_bytes = uint64_t{1} << 40;
  uint32_t tensors = kMaxTensors;

  void check(const Head& head, const Parts& parts) const;
};

// Smaller payloads and storages travel in the first part: a part of its own costs more than a copy.
inline constexpr size_t kInlineBytes = 4096;
// The sum of all inline storages of one message.
inline constexpr size_t kInlineStorageBytes = 256 * 1024;

}  // namespace rpc_backends
