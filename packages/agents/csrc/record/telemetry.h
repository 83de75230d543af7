// Traces and metrics of the calls in a CallLog: decides which traces are sampled, makes the ids of spans, and counts.
// Nothing here takes the GIL; Python reads the results when it exports them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "record/call_log.h"
#include "record/span.h"

namespace pybind11 {
class module_;
}

namespace rpc_backends {

class Telemetry {
 public:
  // The upper bounds of the histogram of durations, in microseconds. From 5 ms on, they are those of OpenTelemetry's
  // conventions for RPC.
  static constexpr std::array<int64_t, 19> kBounds = {
      50,     100,     250,     500,     1'000,   2'500,     5'000,     10'000,    25'000,    50'000,
      75'000, 100'000, 250'000, 500'000, 750'000, 1'000'000, 2'500'000, 5'000'000, 10'000'000};

  // Calls that differ only in their times and sizes.
  struct Series {
    std::array<std::atomic<uint64_t>, kBounds.size() + 1> buckets{};
    std::atomic<int64_t> sum_us{0};
    std::atomic<uint64_t> bytes{0}, answer_bytes{0};
  };

  struct Key {
    uint32_t function = 0;  // both as in RecordedCall
    uint32_t peer = 0;
    int32_t peer_id = -1;
    uint16_t type = 0;
    uint8_t incoming = 0;
    RecordedCall::State state = RecordedCall::State::kAnswered;

    bool operator==(const Key& other) const = default;
  };

  struct EndedSpan {
    RecordedCall call;
    Span span;
    std::string error;
  };

  Telemetry();

  // Sets the share of new traces that are sampled, from 0 to 1. A call inside of a trace does what the trace does.
  void sample(double ratio);
  // Makes the span of a call of this type that starts now. It has no ids if the trace is not sampled, and it is kNone
  // if calls of this type are not traced.
  Span start(const SpanContext& parent, int32_t type) const;
  // Takes the end of a call.
  void end(const RecordedCall& call, const Span& span, const std::string& error);

  // Returns the sampled spans that have ended since the last call.
  std::vector<EndedSpan> take_spans();
  // Sampled spans that were lost because no exporter took them in time.
  uint64_t lost_spans() const { return lost_spans_; }
  std::vector<std::pair<Key, const Series*>> series() const;

 private:
  static constexpr size_t kMostSeries = 4096;
  static constexpr size_t kMostSpans = 32768;

  struct Hash {
    size_t operator()(const Key& key) const noexcept;
  };

  Series& series_of(const Key& key);

  const uint64_t id_;
  std::atomic<uint64_t> bound_{0};  // traces whose id is below are sampled
  mutable std::mutex series_mutex_;
  std::unordered_map<Key, std::unique_ptr<Series>, Hash> series_;
  std::mutex spans_mutex_;
  std::vector<EndedSpan> spans_;
  std::atomic<uint64_t> lost_spans_{0};
};

void bind_telemetry(pybind11::module_& module);

}  // namespace rpc_backends
