// The calls of a worker: those in flight, and the last ones that have ended. Writing needs no lock; any thread can read
// at any time.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/distributed/rpc/types.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "record/cell.h"
#include "record/span.h"

namespace rpc_backends {

class Telemetry;

// One call. `function`, `peer` and `error` are numbers of texts; see Names and CallLog::error().
struct RecordedCall {
  // kRaised: answered with an exception of a Python function.
  enum class State : uint8_t { kInFlight, kAnswered, kFailed, kTimedOut, kLost, kShutDown, kDropped, kRaised };

  uint64_t number = 0;   // of this call among the recorded calls of this worker: 1, 2, 3...
  uint64_t call = 0;     // the number that its caller's agent gave it, on both sides; 0 if it is not known
  uint64_t thread = 0;   // the thread that made the call, or on which it arrived, as pthread_self() gives it
  int64_t begin_us = 0;  // microseconds since 1970: when the call was made, or arrived
  int64_t end_us = 0;    // 0 while it is in flight
  uint64_t bytes = 0;    // of the request, with its tensors
  uint64_t answer_bytes = 0;
  uint32_t timeout_ms = 0;
  int32_t peer_id = -1;
  uint32_t function = 0;
  uint32_t peer = 0;  // 0 if only the id is known
  uint32_t error = 0;
  uint16_t type = 0;
  uint8_t incoming = 0;
  State state = State::kInFlight;
};

// The id of the worker that this thread has called last, or whose answer it handles; -1 if there is none. An error in a
// result has no other way to name the worker.
inline thread_local int last_peer = -1;

class CallLog {
 public:
  using JitFuture = torch::distributed::rpc::JitFuture;
  using Message = torch::distributed::rpc::Message;

  // A place for a call in flight. Places share no cache lines, because several threads use them at the same time.
  struct alignas(64) Place {
    // The number of the call; kFree if there is none; kTaken while the call is being written.
    std::atomic<uint64_t> number{kFree};
    std::atomic<uint64_t> sent{0};  // see sent()
    Words<RecordedCall> call;
    Span span;                      // of the call, if the log has telemetry
    std::shared_ptr<CallLog> kept;  // see end_with()
  };

  // `capacity`: the number of ended calls to keep. A log that keeps none is for telemetry only: it has nothing to read.
  explicit CallLog(size_t capacity);
  ~CallLog();
  CallLog(const CallLog&) = delete;
  CallLog& operator=(const CallLog&) = delete;

  // Makes each call a span of this telemetry, which also counts the calls; only before the first call.
  void report_to(std::shared_ptr<Telemetry> telemetry) { telemetry_ = std::move(telemetry); }

  // Enter a call that is being made, or that has arrived, on this thread. Return null if there is no room.
  Place* begin_outgoing(const torch::distributed::rpc::WorkerInfo& to, const Message& message,
                        std::chrono::milliseconds timeout, const SpanContext& parent = {});
  Place* begin_incoming(int peer_id, const Message& message, uint64_t call, const SpanContext& parent = {});
  // Says which number the agent has given a call that has not ended.
  static void sent(Place* place, uint64_t call) { place->sent.store(call, std::memory_order_relaxed); }
  // The name of the worker that a call in flight is made to.
  static std::string callee_of(const Place& place);
  // Records the end of a call when `answer` completes; keeps `log` until then.
  static void end_with(const std::shared_ptr<CallLog>& log, Place* place, JitFuture& answer);
  // Records the end of a call, which was at `end_us`; `answer` is null if an arrived call is not answered.
  void end(Place* place, JitFuture* answer, int64_t end_us);
  void answered(Place* place, const Message& answer, int64_t end_us);
  void failed(Place* place, const std::string& error, int64_t end_us = now_us());

  // The calls in flight, the oldest first; the last calls that have ended, in order of their ends. A call that ends
  // meanwhile is in one of them.
  struct Look {
    std::vector<RecordedCall> in_flight, recent;
  };
  Look look() const;
  std::vector<RecordedCall> in_flight() const;
  // How many RRefs of other workers this worker holds, by the owner's number in Names. RRefs that their owner has sent
  // here are not counted, because this worker sends no message for them.
  std::map<uint32_t, int64_t> held_rrefs() const;
  // The text of an error; empty if it is too old.
  std::string error(uint32_t number) const;

  // Microseconds since 1970.
  static int64_t now_us();
  uint64_t calls() const { return number_; }
  uint64_t unrecorded() const { return unrecorded_; }

 private:
  static constexpr size_t kChunk = 256;
  static constexpr size_t kChunks = 1024;
  static constexpr uint64_t kFree = 0;
  static constexpr uint64_t kTaken = ~uint64_t{0};

  std::vector<RecordedCall> recent() const;
  Place* take_place();
  Place* begin(RecordedCall& call, const Message& message, const SpanContext& parent);
  // Returns the call in a place that the calling thread may write.
  static RecordedCall call_of(const Place& place);
  void end(Place* place, RecordedCall& call, int64_t end_us);
  void count_rref(const RecordedCall& call);
  uint32_t keep_error(const std::string& text);

  // Other threads begin calls than end them.
  alignas(64) std::atomic<uint64_t> number_{0};
  alignas(64) std::atomic<uint64_t> ended_{0};
  std::atomic<Place*> freed_{nullptr};  // the last place that became free: it is the most likely one in a cache
  alignas(64) std::atomic<uint64_t> unrecorded_{0};
  std::shared_ptr<Telemetry> telemetry_;  // null if there is none
  std::vector<Cell<RecordedCall>> recent_;
  std::atomic<Place*> chunks_[kChunks] = {};
  std::mutex grow_mutex_;
  mutable std::mutex rrefs_mutex_;
  std::map<uint32_t, int64_t> held_rrefs_;  // only calls that create or delete RRefs use it
  mutable std::mutex errors_mutex_;
  std::deque<std::string> errors_;  // the last errors; only failed calls use it
  uint32_t errors_before_ = 0;      // those that are no longer kept
};

RecordedCall::State state_of_error(std::string_view text);
const char* name_of(RecordedCall::State state);

}  // namespace rpc_backends
