// Spans of distributed traces: which span a thread works in, and how the context of a span travels to the callee.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace rpc_backends {

// What identifies a span: the ids of W3C trace context, and whether the trace is sampled.
struct SpanContext {
  // kNone: there is no span. kDropped: the trace is not sampled, so its ids are not set.
  enum class Sampling : uint8_t { kNone, kDropped, kSampled };

  uint64_t trace_high = 0;
  uint64_t trace_low = 0;
  uint64_t span = 0;
  Sampling sampling = Sampling::kNone;
};

struct Span {
  SpanContext context;
  uint64_t parent = 0;  // the span above it in the trace; 0 if there is none
};

// The name of the context in the frame of a request; interceptors have contexts of their own beside it.
inline constexpr std::string_view kSpanContextName = "traceparent";

std::string write_span(const SpanContext& context);
// Returns kNone if the bytes, which come from another worker, are not valid.
SpanContext read_span(std::string_view bytes);

// The span that this thread works in: a span of the program, the request that the thread serves, or the span in which
// the autograd engine was started for this thread's work.
SpanContext current_span();
// Sets the program's span of this thread; kNone if the program has none.
void set_program_span(const SpanContext& context);

// While it exists, this thread works in a span, and so does what torch starts on other threads with this thread's
// state.
class InSpan {
 public:
  explicit InSpan(const SpanContext& context);
  ~InSpan();
  InSpan(const InSpan&) = delete;
  InSpan& operator=(const InSpan&) = delete;

 private:
  SpanContext program_before_, request_before_;
  std::optional<c10::DebugInfoGuard> guard_;  // empty if there is no span
};

}  // namespace rpc_backends
