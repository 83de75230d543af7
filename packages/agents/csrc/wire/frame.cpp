#include "wire/frame.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "rpc_backends_agents/interceptor.h"

namespace rpc_backends {

namespace {

constexpr uint16_t kPayloadInline = 1;

// The kind of a piece is that of its message plus this.
constexpr uint8_t kPieceKinds = 2;

// Returns a byte of the start of a frame; 0 if the message does not start like a frame.
uint8_t byte_of_frame(const Parts& parts, size_t place) {
  uint32_t magic = 0;
  if (parts.empty() || parts[0].size <= place || !parts[0].memory.is_host()) {
    return 0;
  }
  std::memcpy(&magic, parts[0].data, sizeof magic);
  return magic == Head::kMagic ? static_cast<const uint8_t*>(parts[0].data)[place] : uint8_t{0};
}

constexpr size_t kVersionPlace = 4;
constexpr size_t kKindPlace = 5;

std::string quantity(const char* what, uint64_t claimed, uint64_t limit) {
  return std::string("it claims ") + std::to_string(claimed) + " " + what + "; at most " + std::to_string(limit) +
         " are allowed";
}

}  // namespace

size_t size_of(const Contexts& contexts) {
  size_t size = 0;
  for (const Context& context : contexts) {
    size += 2 + context.name.size() + context.bytes.size();
  }
  return size;
}

void write(const Contexts& contexts, Writer& out) {
  for (const Context& context : contexts) {
    for (const std::string* text : {&context.name, &context.bytes}) {
      out.put(static_cast<uint8_t>(text->size()));
      out.put(text->data(), text->size());
    }
  }
}

Contexts read_contexts(Reader in) {
  const auto read_text = [&in] {
    const auto size = in.get<uint8_t>();
    const auto* begin = reinterpret_cast<const char*>(in.take(size));
    return std::string(begin, size);
  };
  Contexts contexts;
  while (in.left() > 0) {
    Context context;
    context.name = read_text();
    context.bytes = read_text();
    const auto is_it = [&](const Context& other) { return other.name == context.name; };
    if (context.name.empty() || context.name.size() > kMaxInterceptorName ||
        std::any_of(contexts.begin(), contexts.end(), is_it)) {
      throw BadFrame("the name of a context is not valid");
    }
    contexts.push_back(std::move(context));
  }
  return contexts;
}

void Head::write(Writer& out) const {
  out.put(kMagic);
  out.put(bytes_in_pieces > 0 ? kVersionInPieces : kVersion);
  out.put(kind);
  out.put(static_cast<uint16_t>(payload_inline ? kPayloadInline : 0));
  out.put(type);
  out.put(tensors);
  out.put(storages);
  out.put(context_size);
  out.put(call);
  out.put(payload_size);
  out.put(description_size);
  if (bytes_in_pieces > 0) {
    out.put(session);
    out.put(bytes_in_pieces);
  }
}

Head Head::read(Reader& in) {
  if (in.get<uint32_t>() != kMagic) {
    throw BadFrame("it does not start with the bytes of a frame");
  }
  const auto version = in.get<uint8_t>();
  if (version != kVersion && version != kVersionInPieces) {
    throw BadFrame("its version is " + std::to_string(version) + ", but this worker uses version " +
                   std::to_string(kVersion) + "; install the same rpc-backends-agents on all workers");
  }
  Head head;
  const auto kind = in.get<uint8_t>();
  if (kind != static_cast<uint8_t>(FrameKind::kRequest) && kind != static_cast<uint8_t>(FrameKind::kAnswer)) {
    throw BadFrame("its kind " + std::to_string(kind) + " is unknown");
  }
  head.kind = static_cast<FrameKind>(kind);
  const auto flags = in.get<uint16_t>();
  if (flags > kPayloadInline) {
    throw BadFrame("it has unknown flags");
  }
  head.payload_inline = flags != 0;
  head.type = in.get<int32_t>();
  head.tensors = in.get<uint32_t>();
  head.storages = in.get<uint32_t>();
  head.context_size = in.get<uint32_t>();
  head.call = in.get<uint64_t>();
  head.payload_size = in.get<uint64_t>();
  head.description_size = in.get<uint64_t>();
  if (version == kVersionInPieces) {
    head.session = in.get<uint64_t>();
    head.bytes_in_pieces = in.get<uint64_t>();
    if (head.bytes_in_pieces == 0) {
      throw BadFrame("it is in pieces that have no bytes");
    }
  }
  return head;
}

bool is_piece(const Parts& parts) {
  return byte_of_frame(parts, kVersionPlace) == Head::kVersionInPieces &&
         byte_of_frame(parts, kKindPlace) > static_cast<uint8_t>(FrameKind::kAnswer);
}

bool is_in_pieces(const Parts& parts) {
  return byte_of_frame(parts, kVersionPlace) == Head::kVersionInPieces;
}

void PieceHead::write(Writer& out) const {
  out.put(Head::kMagic);
  out.put(Head::kVersionInPieces);
  out.put(static_cast<uint8_t>(static_cast<uint8_t>(kind) + kPieceKinds));
  out.put(device_type);
  out.put(device_index);
  out.put(storage);
  out.put(call);
  out.put(session);
  out.put(storage_size);
  out.put(offset);
}

PieceHead PieceHead::read(const Parts& parts) {
  if (!is_piece(parts)) {
    throw BadFrame("it is not a piece");
  }
  Reader in(parts[0].data, parts[0].size);
  (void)in.take(kKindPlace);
  const auto kind = static_cast<uint8_t>(in.get<uint8_t>() - kPieceKinds);
  if (kind != static_cast<uint8_t>(FrameKind::kRequest) && kind != static_cast<uint8_t>(FrameKind::kAnswer)) {
    throw BadFrame("its kind " + std::to_string(kind + kPieceKinds) + " is unknown");
  }
  PieceHead head;
  head.kind = static_cast<FrameKind>(kind);
  head.device_type = in.get<uint8_t>();
  head.device_index = in.get<uint8_t>();
  head.storage = in.get<uint32_t>();
  head.call = in.get<uint64_t>();
  head.session = in.get<uint64_t>();
  head.storage_size = in.get<uint64_t>();
  head.offset = in.get<uint64_t>();
  if (in.left() != 0 || parts.size() != 2 || !parts[1].memory.is_host()) {
    throw BadFrame("a piece does not consist of its head and its bytes");
  }
  if (head.storage_size <= kPieceBytes || head.offset >= head.storage_size || head.offset % kPieceBytes != 0 ||
      parts[1].size != std::min(kPieceBytes, head.storage_size - head.offset)) {
    throw BadFrame("a piece has the wrong size or place");
  }
  return head;
}

void Limits::check(const Head& head, const Parts& parts) const {
  uint64_t bytes = 0;
  for (const Part& part : parts) {
    bytes += part.size;
  }
  const bool overflows = head.bytes_in_pieces > UINT64_MAX - bytes;
  if (overflows || bytes + head.bytes_in_pieces > message_bytes) {
    throw BadFrame("it has " + (overflows ? "2^64" : std::to_string(bytes + head.bytes_in_pieces)) +
                   " bytes, more than max_message_bytes of the receiving worker, " + std::to_string(message_bytes));
  }
  if (head.tensors > tensors) {
    throw BadFrame(quantity("tensors", head.tensors, tensors));
  }
  // A tensor has at most three storages; the description of each takes nine bytes.
  if (head.storages > 3 * static_cast<uint64_t>(head.tensors)) {
    throw BadFrame(quantity("storages", head.storages, 3 * static_cast<uint64_t>(head.tensors)));
  }
  const uint64_t most_context = head.kind == FrameKind::kRequest ? kMaxAllContextBytes + kMaxSpanContextBytes : 0;
  if (head.context_size > most_context) {
    throw BadFrame(quantity("bytes of context", head.context_size, most_context));
  }
  if (head.payload_size > bytes || head.description_size > bytes) {
    throw BadFrame("it claims to be longer than it is");
  }
}

}  // namespace rpc_backends
