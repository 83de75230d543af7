#include "record/call_log.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <unordered_set>

#include "inspect/pickle_scan.h"
#include "inspect/request_inspector.h"
#include "record/names.h"
#include "record/telemetry.h"
#include "rpc_backends_agents/interceptor.h"

namespace rpc_backends {

namespace {

constexpr size_t kMostErrors = 1024;
constexpr size_t kMaxErrorLength = 400;

// The last few names that one thread has used, with their numbers. A name is found by the bytes that contain it in a
// message. A thread calls few functions of few workers, so most look-ups compare a few bytes.
class Known {
 public:
  // Returns the number of the known name whose bytes `bytes` begins with; empty if there is none.
  std::optional<uint32_t> find(std::string_view bytes) {
    for (size_t i = 0; i < entries_.size(); ++i) {
      const Entry& entry = entries_[last_];
      if (!entry.bytes.empty() && bytes.substr(0, entry.bytes.size()) == entry.bytes) {
        return entry.number;
      }
      last_ = (last_ + 1) % entries_.size();
    }
    return std::nullopt;
  }

  void add(std::string_view bytes, uint32_t number) {
    if (bytes.size() <= kMost) {
      last_ = (last_ + 1) % entries_.size();
      entries_[last_] = {std::string(bytes), number};
    }
  }

 private:
  static constexpr size_t kMost = 512;
  struct Entry {
    std::string bytes;
    uint32_t number = 0;
  };
  std::array<Entry, 8> entries_;
  size_t last_ = 0;
};

uint32_t function_number(const InspectedRequest& request) {
  if (request.type != torch::distributed::rpc::MessageType::PYTHON_CALL) {
    return calls_function(request.type) ? Names::instance().number_of(function_of(request)) : 0;
  }
  // The function's name depends only on the bytes up to its end; that of a method also on its RRef.
  static thread_local Known known;
  const std::string_view pickle = request.payload.substr(std::min<size_t>(1, request.payload.size()));
  const std::string_view bytes = without_frame(pickle);
  if (const auto number = known.find(bytes)) {
    return *number;
  }
  const PickledCall call = read_call(pickle);
  const uint32_t number = Names::instance().number_of(function_of(call));
  if (call.method.empty() && !bytes.empty() && call.end > pickle.size() - bytes.size()) {
    known.add(pickle.substr(0, call.end).substr(pickle.size() - bytes.size()), number);
  }
  return number;
}

uint32_t peer_number(const std::string& name) {
  static thread_local std::pair<std::string, uint32_t> last;
  if (last.first != name || last.second == 0) {
    last = {name, Names::instance().number_of(name)};
  }
  return last.second;
}

// Whether an answer is the exception of a Python function: the pickle begins with the class that torch wraps it in.
bool is_exception(const torch::distributed::rpc::Message& answer) {
  constexpr std::string_view kClass = "\x8c\x1etorch.distributed.rpc.internal\x94\x8c\x0fRemoteException";
  if (answer.type() != torch::distributed::rpc::MessageType::PYTHON_RET) {
    return false;
  }
  const std::string_view pickle(answer.payload().data(), answer.payload().size());
  return without_frame(pickle).substr(0, kClass.size()) == kClass;
}

uint64_t bytes_of_message(const torch::distributed::rpc::Message& message) {
  return message.payload().size() + (message.tensors().empty() ? 0 : tensor_bytes_of(message));
}

}  // namespace

RecordedCall::State state_of_error(std::string_view text) {
  const auto says = [&](std::string_view part) { return text.find(part) != std::string_view::npos; };
  if (says("RPC ran for more than set timeout")) {
    return RecordedCall::State::kTimedOut;
  }
  if (says("has been shut down")) {
    return RecordedCall::State::kShutDown;
  }
  // ZEROMQ and UCX; TENSORPIPE.
  return says("is lost") || says("connection") || says("eof") || says("EOF") || says("ECONNRE") || says("EPIPE")
             ? RecordedCall::State::kLost
             : RecordedCall::State::kFailed;
}

const char* name_of(RecordedCall::State state) {
  switch (state) {
    case RecordedCall::State::kInFlight:
      return "in flight";
    case RecordedCall::State::kAnswered:
      return "answered";
    case RecordedCall::State::kFailed:
      return "failed";
    case RecordedCall::State::kTimedOut:
      return "timed out";
    case RecordedCall::State::kLost:
      return "lost";
    case RecordedCall::State::kShutDown:
      return "shut down";
    case RecordedCall::State::kRaised:
      return "raised";
    default:
      return "dropped";
  }
}

int64_t CallLog::now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

CallLog::CallLog(size_t capacity) : recent_(capacity) {}

CallLog::~CallLog() {
  for (auto& chunk : chunks_) {
    delete[] chunk.load();
  }
}

CallLog::Place* CallLog::take_place() {
  const auto take = [](Place& place) {
    uint64_t free = kFree;
    return place.number.load(std::memory_order_relaxed) == kFree &&
           place.number.compare_exchange_strong(free, kTaken, std::memory_order_acquire);
  };
  Place* const freed = freed_.load(std::memory_order_acquire);
  if (freed != nullptr && take(*freed)) {
    return freed;
  }
  static thread_local size_t last = 0;  // where this thread found the last one
  for (size_t chunk = 0; chunk < kChunks; ++chunk) {
    Place* places = chunks_[chunk].load(std::memory_order_acquire);
    if (places == nullptr) {
      const std::lock_guard<std::mutex> lock(grow_mutex_);
      places = chunks_[chunk].load(std::memory_order_acquire);
      if (places == nullptr) {
        places = new Place[kChunk];
        chunks_[chunk].store(places, std::memory_order_release);
      }
    }
    for (size_t i = 0; i < kChunk; ++i) {
      const size_t at = (last + i) % kChunk;
      if (take(places[at])) {
        last = at;
        return &places[at];
      }
    }
  }
  return nullptr;
}

CallLog::Place* CallLog::begin(RecordedCall& call, const Message& message, const SpanContext& parent) {
  const InspectedRequest request = inspect(message);
  call.number = ++number_;
  call.thread = static_cast<uint64_t>(::pthread_self());
  call.begin_us = now_us();
  call.bytes = bytes_of_message(message);
  call.type = static_cast<uint16_t>(request.type);
  call.function = function_number(request);
  Place* const place = take_place();
  if (place == nullptr) {
    ++unrecorded_;
    return nullptr;
  }
  if (telemetry_) {
    place->span = telemetry_->start(parent, call.type);
  }
  std::atomic_thread_fence(std::memory_order_release);  // see in_flight()
  sent(place, call.call);
  place->call.store(call);
  place->number.store(call.number, std::memory_order_release);
  return place;
}

CallLog::Place* CallLog::begin_outgoing(const torch::distributed::rpc::WorkerInfo& to, const Message& message,
                                        std::chrono::milliseconds timeout, const SpanContext& parent) {
  RecordedCall call;
  call.timeout_ms = static_cast<uint32_t>(timeout.count());
  call.peer_id = to.id_;
  call.peer = peer_number(to.name_);
  return begin(call, message, parent);
}

CallLog::Place* CallLog::begin_incoming(int peer_id, const Message& message, uint64_t number,
                                        const SpanContext& parent) {
  RecordedCall call;
  call.incoming = 1;
  call.call = number;
  call.peer_id = peer_id;
  return begin(call, message, parent);
}

RecordedCall CallLog::call_of(const Place& place) {
  RecordedCall call = place.call.load();
  call.call = place.sent.load(std::memory_order_relaxed);
  return call;
}

std::string CallLog::callee_of(const Place& place) {
  return Names::instance().name_of(call_of(place).peer);
}

void CallLog::end_with(const std::shared_ptr<CallLog>& log, Place* place, JitFuture& answer) {
  place->kept = log;  // here and not in the callback, so that the callback allocates no memory
  answer.addCallback(
      [place](JitFuture& done) {
        const auto kept = std::move(place->kept);
        kept->end(place, &done, now_us());
      },
      /*uses_future=*/false);
}

void CallLog::end(Place* place, JitFuture* answer, int64_t end_us) {
  if (answer == nullptr) {
    RecordedCall call = call_of(*place);
    call.state = RecordedCall::State::kDropped;
    end(place, call, end_us);
  } else if (answer->hasError()) {
    failed(place, answer->tryRetrieveErrorMessage(), end_us);
  } else {
    // toCustomClass() would also check the type, which takes as long as all the rest here.
    const auto message = answer->constValue().toObjectRef().getSlot(0).toCapsule();
    answered(place, static_cast<const Message&>(*message), end_us);
  }
}

void CallLog::answered(Place* place, const Message& answer, int64_t end_us) {
  RecordedCall call = call_of(*place);
  call.state = is_exception(answer) ? RecordedCall::State::kRaised : RecordedCall::State::kAnswered;
  call.answer_bytes = bytes_of_message(answer);
  if (!call.incoming) {
    count_rref(call);
    last_peer = call.peer_id;
  }
  end(place, call, end_us);
}

void CallLog::failed(Place* place, const std::string& error, int64_t end_us) {
  RecordedCall call = call_of(*place);
  call.state = state_of_error(error);
  call.error = keep_error(error);
  end(place, call, end_us);
}

void CallLog::end(Place* place, RecordedCall& call, int64_t end_us) {
  call.end_us = end_us;
  if (telemetry_) {
    telemetry_->end(call, place->span, call.error == 0 ? std::string() : error(call.error));
  }
  if (!recent_.empty()) {
    // Before its place is free, so that look() misses no call.
    const size_t at = ended_.fetch_add(1, std::memory_order_relaxed) % recent_.size();
    recent_[at].write(call);
    // The next call that ends is written there, to two cache lines that are in no near cache by now.
    const Cell<RecordedCall>& next = recent_[at + 1 == recent_.size() ? 0 : at + 1];
    __builtin_prefetch(&next, 1);
    __builtin_prefetch(reinterpret_cast<const char*>(&next) + sizeof next - 1, 1);
  }
  place->number.store(kFree, std::memory_order_release);
  freed_.store(place, std::memory_order_release);
}

std::vector<RecordedCall> CallLog::in_flight() const {
  std::vector<RecordedCall> calls;
  for (const auto& chunk : chunks_) {
    const Place* places = chunk.load(std::memory_order_acquire);
    for (size_t i = 0; places != nullptr && i < kChunk; ++i) {
      const uint64_t number = places[i].number.load(std::memory_order_acquire);
      if (number == kFree || number == kTaken) {
        continue;
      }
      const RecordedCall call = call_of(places[i]);
      std::atomic_thread_fence(std::memory_order_acquire);
      // Or else the call has ended meanwhile. Acquired, so that recent() finds it.
      if (places[i].number.load(std::memory_order_acquire) == number) {
        calls.push_back(call);
      }
    }
  }
  std::sort(calls.begin(), calls.end(), [](const auto& a, const auto& b) { return a.number < b.number; });
  return calls;
}

CallLog::Look CallLog::look() const {
  Look look{in_flight(), recent()};
  std::unordered_set<uint64_t> ended;
  for (const RecordedCall& call : look.recent) {
    ended.insert(call.number);
  }
  std::erase_if(look.in_flight, [&](const RecordedCall& call) { return ended.count(call.number) != 0; });
  return look;
}

std::vector<RecordedCall> CallLog::recent() const {
  std::vector<RecordedCall> calls;
  for (const auto& cell : recent_) {
    if (const auto call = cell.read()) {
      calls.push_back(*call);
    }
  }
  std::sort(calls.begin(), calls.end(), [](const auto& a, const auto& b) { return a.end_us < b.end_us; });
  return calls;
}

void CallLog::count_rref(const RecordedCall& call) {
  int64_t more = 0;
  switch (call.type) {
    case kPythonRemoteCall:
    case kScriptRemoteCall:
    case kRRefForkRequest:
      more = 1;
      break;
    case kRRefUserDelete:
      more = -1;
      break;
    default:
      return;
  }
  const std::lock_guard<std::mutex> lock(rrefs_mutex_);
  held_rrefs_[call.peer] += more;
}

std::map<uint32_t, int64_t> CallLog::held_rrefs() const {
  const std::lock_guard<std::mutex> lock(rrefs_mutex_);
  return held_rrefs_;
}

uint32_t CallLog::keep_error(const std::string& text) {
  const std::lock_guard<std::mutex> lock(errors_mutex_);
  errors_.push_back(text.substr(0, kMaxErrorLength));
  if (errors_.size() > kMostErrors) {
    errors_.pop_front();
    ++errors_before_;
  }
  return errors_before_ + static_cast<uint32_t>(errors_.size());
}

std::string CallLog::error(uint32_t number) const {
  const std::lock_guard<std::mutex> lock(errors_mutex_);
  return number > errors_before_ && number - errors_before_ <= errors_.size() ? errors_[number - errors_before_ - 1]
                                                                              : std::string();
}

}  // namespace rpc_backends
