#include "record/span.h"

#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

namespace rpc_backends {

namespace {

// A format version, the ids, and a flag for each; a trace that is not sampled has one byte.
constexpr char kDroppedTrace = 0;
constexpr char kSampledTrace = 1;
constexpr size_t kSize = 1 + 3 * sizeof(uint64_t);

struct SpanInfo final : c10::DebugInfoBase {
  explicit SpanInfo(const SpanContext& span) : context(span) {}
  const SpanContext context;
};

// torch 2.12 and older have an enumeration here, and later ones a class that compares addresses.
template <typename Kind>
Kind kind_of_span() {
  if constexpr (std::is_enum_v<Kind>) {
    return static_cast<Kind>(0xb5);
  } else {
    static constexpr std::string_view kName = "RPC_BACKENDS_SPAN";
    return Kind(&kName);
  }
}

thread_local SpanContext program_span;
thread_local SpanContext request_span;  // of the request that the thread serves

}  // namespace

std::string write_span(const SpanContext& context) {
  if (context.sampling != SpanContext::Sampling::kSampled) {
    return std::string(1, kDroppedTrace);
  }
  std::string bytes(kSize, kSampledTrace);
  const uint64_t ids[] = {context.trace_high, context.trace_low, context.span};
  std::memcpy(bytes.data() + 1, ids, sizeof ids);
  return bytes;
}

SpanContext read_span(std::string_view bytes) {
  SpanContext span;
  if (bytes.size() == 1 && bytes[0] == kDroppedTrace) {
    span.sampling = SpanContext::Sampling::kDropped;
  } else if (bytes.size() == kSize && bytes[0] == kSampledTrace) {
    uint64_t ids[3];
    std::memcpy(ids, bytes.data() + 1, sizeof ids);
    if ((ids[0] | ids[1]) != 0 && ids[2] != 0) {
      span = {ids[0], ids[1], ids[2], SpanContext::Sampling::kSampled};
    }
  }
  return span;
}

SpanContext current_span() {
  for (const SpanContext* const span : {&program_span, &request_span}) {
    if (span->sampling != SpanContext::Sampling::kNone) {
      return *span;
    }
  }
  const auto* const info =
      static_cast<const SpanInfo*>(c10::ThreadLocalDebugInfo::get(kind_of_span<c10::DebugInfoKind>()));
  return info == nullptr ? SpanContext() : info->context;
}

void set_program_span(const SpanContext& context) {
  program_span = context;
}

namespace {

// The state of a thread that has nothing but a span that is not sampled. Most requests need it, so it is made once.
const std::shared_ptr<c10::ThreadLocalDebugInfo>& state_of_dropped() {
  static const auto* const state = [] {
    SpanContext dropped;
    dropped.sampling = SpanContext::Sampling::kDropped;
    const c10::DebugInfoGuard guard(kind_of_span<c10::DebugInfoKind>(), std::make_shared<SpanInfo>(dropped));
    return new std::shared_ptr<c10::ThreadLocalDebugInfo>(c10::ThreadLocalDebugInfo::current());
  }();
  return *state;
}

}  // namespace

InSpan::InSpan(const SpanContext& context)
    : program_before_(std::exchange(program_span, {})), request_before_(std::exchange(request_span, context)) {
  if (context.sampling == SpanContext::Sampling::kNone) {
    return;
  }
  if (context.sampling == SpanContext::Sampling::kDropped && !c10::ThreadLocalDebugInfo::current()) {
    guard_.emplace(state_of_dropped());
  } else {
    guard_.emplace(kind_of_span<c10::DebugInfoKind>(), std::make_shared<SpanInfo>(context));
  }
}

InSpan::~InSpan() {
  program_span = program_before_;
  request_span = request_before_;
}

}  // namespace rpc_backends
