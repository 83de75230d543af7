// The frame of a message: the head before payload and tensors, and the limits of a message.
//
// A message is sent as parts. The first part contains the head, the descriptions of the tensors, and then everything
// small: the payload and the storages that are flagged as inline. Each larger item is a separate part: first the
// payload, then the storages in order.
//
// Large storages of accelerators are sent before that, in pieces: messages of two parts, a PieceHead and the bytes. A
// message in pieces has version 2; workers that do not know pieces refuse it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "rpc_backends_agents/transport.h"

namespace rpc_backends {

enum class FrameKind : uint8_t { kRequest = 1, kAnswer = 2 };

// The bytes that an interceptor has attached to a request.
struct Context {
  std::string name;
  std::string bytes;
};

using Contexts = std::vector<Context>;

// The room in a frame for the context of a span, beside what interceptors attach.
inline constexpr size_t kMaxSpanContextBytes = 64;

// The size of contexts in a frame, in bytes.
size_t size_of(const Contexts& contexts);
void write(const Contexts& contexts, Writer& out);
Contexts read_contexts(Reader in);

struct Head {
  static constexpr uint32_t kMagic = 0x42435052;  // "RPCB"
  static constexpr uint8_t kVersion = 1;
  static constexpr uint8_t kVersionInPieces = 2;

  FrameKind kind = FrameKind::kRequest;
  bool payload_inline = false;
  int32_t type = 0;
  uint32_t tensors = 0;
  uint32_t storages = 0;
  uint32_t context_size = 0;
  uint64_t call = 0;
  uint64_t payload_size = 0;
  uint64_t description_size = 0;
  // Only in messages in pieces: the sender's session, and the bytes of all pieces.
  uint64_t session = 0;
  uint64_t bytes_in_pieces = 0;

  void write(Writer& out) const;
  static Head read(Reader& in);
};

// The bytes of a piece; the last piece of a storage may be shorter.
inline constexpr uint64_t kPieceBytes = uint64_t{4} << 20;

// What is before the bytes of a piece.
struct PieceHead {
  FrameKind kind = FrameKind::kRequest;  // of the message
  uint8_t device_type = 0;               // where the receiver needs the bytes
  uint8_t device_index = 0;
  uint32_t storage = 0;  // its number in the message
  uint64_t call = 0;
  uint64_t session = 0;  // differs between the agents that a worker id has had
  uint64_t storage_size = 0;
  uint64_t offset = 0;  // in the storage

  void write(Writer& out) const;
  // Throws BadFrame if the piece cannot be part of a storage.
  static PieceHead read(const Parts& parts);
};

bool is_piece(const Parts& parts);
// Whether the message is in pieces; `parts` is not a piece. Does not check the rest of the head.
bool is_in_pieces(const Parts& parts);

// The most tensors of a message.
inline constexpr uint32_t kMaxTensors = uint32_t{1} << 20;

// The limits of a frame. A frame that exceeds them is rejected before any memory is allocated for it.
struct Limits {
  uint64_t message_bytes = uint64_t{1} << 40;
  uint32_t tensors = kMaxTensors;

  void check(const Head& head, const Parts& parts) const;
};

// Payloads and storages up to this size are copied to the first part: that is cheaper than a separate part.
inline constexpr size_t kInlineBytes = 4096;
// The largest total size of the inline storages of a message.
inline constexpr size_t kInlineStorageBytes = 256 * 1024;

}  // namespace rpc_backends
