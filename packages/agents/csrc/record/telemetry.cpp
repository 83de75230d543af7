#include "record/telemetry.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "rpc_backends_agents/interceptor.h"

namespace rpc_backends {

namespace {

// A random number that is not 0; SplitMix64, seeded for each thread.
uint64_t random_id() {
  static thread_local uint64_t state = [] {
    std::random_device device;
    return (uint64_t{device()} << 32) | device();
  }();
  for (;;) {
    state += 0x9e3779b97f4a7c15;
    uint64_t mixed = state;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    mixed ^= mixed >> 31;
    if (mixed != 0) {
      return mixed;
    }
  }
}

// Torch sends these by itself at any time, so they belong to no trace.
bool is_housekeeping(int32_t type) {
  return type == kRRefUserDelete || type == kRRefForkRequest || type == kRRefChildAccept ||
         type == kCleanupAutogradContextRequest;
}

}  // namespace

Telemetry::Telemetry() : id_(random_id()) {}

void Telemetry::sample(double ratio) {
  const double scaled = std::ldexp(std::clamp(ratio, 0.0, 1.0), 64);
  bound_ = scaled >= std::ldexp(1.0, 64) ? ~uint64_t{0} : static_cast<uint64_t>(scaled);
}

Span Telemetry::start(const SpanContext& parent, int32_t type) const {
  using Sampling = SpanContext::Sampling;
  Span span;
  if (is_housekeeping(type)) {
    return span;
  }
  if (parent.sampling == Sampling::kDropped) {
    span.context.sampling = Sampling::kDropped;
    return span;
  }
  if (parent.sampling == Sampling::kSampled) {
    span.context = parent;
    span.parent = parent.span;
  } else {
    const uint64_t low = random_id();
    if (low >= bound_.load(std::memory_order_relaxed)) {
      span.context.sampling = Sampling::kDropped;
      return span;
    }
    span.context = {random_id(), low, 0, Sampling::kSampled};
  }
  span.context.span = random_id();
  return span;
}

void Telemetry::end(const RecordedCall& call, const Span& span, const std::string& error) {
  Series& series = series_of({call.function, call.peer, call.peer_id, call.type, call.incoming, call.state});
  const int64_t us = std::max<int64_t>(call.end_us - call.begin_us, 0);
  const size_t bucket = static_cast<size_t>(std::lower_bound(kBounds.begin(), kBounds.end(), us) - kBounds.begin());
  series.buckets[bucket].fetch_add(1, std::memory_order_relaxed);
  series.sum_us.fetch_add(us, std::memory_order_relaxed);
  series.bytes.fetch_add(call.bytes, std::memory_order_relaxed);
  series.answer_bytes.fetch_add(call.answer_bytes, std::memory_order_relaxed);
  if (span.context.sampling != SpanContext::Sampling::kSampled) {
    return;
  }
  const std::lock_guard<std::mutex> lock(spans_mutex_);
  if (spans_.size() < kMostSpans) {
    spans_.push_back({call, span, error});
  } else {
    ++lost_spans_;
  }
}

std::vector<Telemetry::EndedSpan> Telemetry::take_spans() {
  const std::lock_guard<std::mutex> lock(spans_mutex_);
  return std::exchange(spans_, {});
}

size_t Telemetry::Hash::operator()(const Key& key) const noexcept {
  uint64_t mixed = (uint64_t{key.function} << 32) ^ (uint64_t{static_cast<uint32_t>(key.peer_id)} << 20) ^
                   (uint64_t{key.type} << 4) ^ (uint64_t{key.incoming} << 3) ^ static_cast<uint64_t>(key.state);
  mixed *= 0x9e3779b97f4a7c15;
  return static_cast<size_t>(mixed >> 20);
}

Telemetry::Series& Telemetry::series_of(const Key& key) {
  struct Known {
    uint64_t owner = 0;
    Key key;
    Series* series = nullptr;
  };
  static thread_local std::array<Known, 16> all_known;
  Known& known = all_known[Hash()(key) % all_known.size()];
  if (known.owner == id_ && known.key == key) {
    return *known.series;
  }
  const std::lock_guard<std::mutex> lock(series_mutex_);
  // Peers choose the names of the functions that they call, so the number of series has a limit.
  const bool is_room = series_.size() < kMostSeries || series_.count(key) != 0;
  auto& series = series_[is_room ? key : Key{0, 0, -1, 0, key.incoming, key.state}];
  if (!series) {
    series = std::make_unique<Series>();
  }
  known = {id_, key, series.get()};
  return *series;
}

std::vector<std::pair<Telemetry::Key, const Telemetry::Series*>> Telemetry::series() const {
  const std::lock_guard<std::mutex> lock(series_mutex_);
  std::vector<std::pair<Key, const Series*>> listed;
  for (const auto& [key, series] : series_) {
    listed.emplace_back(key, series.get());
  }
  return listed;
}

}  // namespace rpc_backends
