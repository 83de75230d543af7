#include "frame.h"

#include <algorithm>
#include <string>

#include "rpc_backends_agents/interceptor.h"

namespace rpc_backends {

namespace {

constexpr uint16_t kPayloadInline = 1;

std::string quantity(const char* what, uint64_t found, uint64_t limit) {
  return std::string("it claims ") + std::to_string(found) + " " + what + "; at most " + std::to_string(limit) +
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
  out.put(kVersion);
  out.put(kind);
  out.put(static_cast<uint16_t>(payload_inline ? kPayloadInline : 0));
  out.put(type);
  out.put(tensors);
  out.put(storages);
  out.put(context_size);
  out.put(call);
  out.put(payload_size);
  out.put(description_size);
}

Head Head::read(Reader& in) {
  if (in.get<uint32_t>() != kMagic) {
    throw BadFrame("it does not start with the bytes of a frame");
  }
  const auto version = in.get<uint8_t>();
  if (version != kVersion) {
    throw BadFrame("its version is " + std::to_string(version) + ", but this worker uses version " +
                   std::to_string(kVersion) + "; install the same rpc-backends-agents on all workers");
  }
  Head head;
  const auto kind = in.get<uint8_t>();
  if (kind != static_cast<uint8_t>(FrameKind::kRequest) && kind != static_cast<uint8_t>(FrameKind::kResponse)) {
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
  return head;
}

void Limits::check(const Head& head, const Parts& parts) const {
  uint64_t bytes = 0;
  for (const Part& part : parts) {
    bytes += part.size;
  }
  if (bytes > message_bytes) {
    throw BadFrame("it has " + std::to_string(bytes) + " bytes, more than max_message_bytes of the receiving worker, " +
                   std::to_string(message_bytes));
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
