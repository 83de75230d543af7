#include "agent/core.h"

#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/rpc/request_callback_impl.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <random>
#include <utility>

#include "base/log.h"
#include "python/python_state.h"
#include "rpc/message_kinds.h"

namespace rpc_backends {

namespace rpc = torch::distributed::rpc;

namespace {

// At shutdown: seconds for the last messages to be sent, and seconds for running requests to end.
constexpr double kLinger = 2.0;
constexpr double kStopTimeout = 5.0;

uint64_t random_session() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;  // not 0
}

bool is_number(const std::string& text) {
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  return !text.empty() && *end == 0;
}

}  // namespace

TransportAgent::Core::Core(const std::string& name, int id, std::shared_ptr<Transport> transport,
                           const AgentOptions& options)
    : id_(id),
      options_(options),
      limits_{options.max_message_bytes},
      transport_(std::move(transport)),
      callback_(std::make_unique<rpc::RequestCallbackImpl>()),
      answers_(options.max_unanswered_bytes),
      thread_pool_(std::make_shared<ThreadPool>(
          transport_, ThreadPool::Options{options.num_worker_threads, options.max_unanswered_bytes,
                                          [this](int peer) { return answers_.is_behind(peer); },
                                          [this] { calls_.ask_for_pulse(); }})),
      calls_(
          options.max_unanswered_bytes, [this](std::vector<Calls::Call> late) { fail_late(std::move(late)); },
          [this] {
            const bool has_unfinished = drop_stale();
            const bool has_failed = release_failed_rrefs();
            warn_if_full();
            return thread_pool_->retry() || has_unfinished || has_failed;
          }),
      arriving_(options.max_message_bytes, options.max_unanswered_bytes),
      session_(random_session()) {
  members.add(name, id);
}

void TransportAgent::Core::start() {
  running_ = true;
  calls_.start();
  // The pool's threads keep this object.
  thread_pool_->start([self = shared_from_this()](Event& event) { self->handle(event); });
}

void TransportAgent::Core::stop() {
  const bool was_running = running_.exchange(false);
  order_.close();
  contained("while closing the transport", [&] { transport_->close(was_running ? kLinger : 0); });
  if (!was_running) {
    return;
  }
  for (const Calls::Call& call : calls_.take_all()) {
    end_call(call, "the RPC agent of this worker has been shut down");
  }
  calls_.stop();
  after_copies_.stop();
  thread_pool_->stop(kStopTimeout);
  arriving_.clear();
}

// --- what arrives -----------------------------------------------------------------------------------

void TransportAgent::Core::handle(Event& event) {
  EventOrder::Handling handling(order_, event.order);
  switch (event.kind) {
    case Event::Kind::kMessage:
      bytes_received_ += size_of(event.parts);
      handle_message(event.peer, event.parts, handling);
      break;
    case Event::Kind::kLost:
      handling.wait_for_earlier();
      lose(event);
      break;
    case Event::Kind::kFound:
      handling.wait_for_earlier();
      forget_loss(event.peer);
      break;
    case Event::Kind::kUnsent:
      handling.note();
      take_unsent(event.peer, event.parts, event.reason, false);
      break;
  }
}

void TransportAgent::Core::handle_own_message(const Parts& parts) {
  EventOrder::Handling none;
  handle_message(id_, parts, none);
}

void TransportAgent::Core::handle_message(int peer, const Parts& parts, EventOrder::Handling& event) {
  if (is_in_pieces(parts)) {
    handle_in_pieces(peer, parts, event);
    return;
  }
  const DeviceMaps* const maps = devices.get();
  if (maps == nullptr || maps->devices.empty()) {
    handle_decoded(peer, parts, event, {});
    return;
  }
  const std::vector<c10::Stream> streams = streams_from_pool(maps->devices);
  const c10::MultiStreamGuard guard(streams);
  handle_decoded(peer, parts, event, streams);
}

Decoded TransportAgent::Core::decode_message(const Parts& parts, Copies& copies, const ArrivingMessage::Whole* whole) {
  static const ArrivedStorages none;
  const ArrivedStorages& arrived = whole == nullptr ? none : whole->storages;
  return with_devices([&](const std::vector<c10::Device>& known) {
    return decode(parts, limits_, known, copies, arrived, received_memory_.get());
  });
}

void TransportAgent::Core::handle_decoded(int peer, const Parts& parts, EventOrder::Handling& event,
                                          const std::vector<c10::Stream>& streams,
                                          const ArrivingMessage::Whole* whole) {
  std::optional<Decoded> decoded;
  // decode() throws BadFrame, or std::bad_alloc if there is not enough memory.
  const auto bad = error_in([&] {
    Copies copies;
    decoded = decode_message(parts, copies, whole);
    if (!copies.empty()) {
      copies.record();
      after_copies_.run(std::move(copies));
    }
  });
  if (bad) {
    refuse(peer, parts, *bad);
    return;
  }
  if (is_python(decoded->message->type())) {
    PythonState::keep();
  }
  if (decoded->kind == FrameKind::kResponse) {
    take_answer(peer, *decoded, event);
    return;
  }
  event.note();
  const uint64_t call = decoded->call;
  const uint64_t bytes = size_of(parts) + (whole == nullptr ? 0 : whole->bytes);
  ++active_requests_;
  if (peer != id_) {
    ++received_;
  }
  if (const auto error = error_in([&] { serve(peer, std::move(*decoded), bytes, streams); })) {
    auto response = c10::make_intrusive<JitFuture>(at::AnyClassType::get());
    fail(response, "the request cannot be served: " + *error);
    reply(peer, call, *response, streams);
  }
}

void TransportAgent::Core::refuse(int peer, const Parts& parts, const std::string& why) {
  ++bad_frames_;
  std::optional<Head> head;
  (void)error_in([&] { head = read_head(parts); });
  const std::string who = members.called(peer);
  if (!head) {
    const std::string reason = "an invalid message: " + why;
    warn("RPC: " + who + " has sent " + reason + ". The connection is closed.");
    transport_->reject(peer, reason);
    return;
  }
  const bool is_request = head->kind == FrameKind::kRequest;
  warn_seldom("bad message of " + who, "RPC: " + who + " has sent " + (is_request ? "a request" : "an answer") +
                                           " that this worker refuses: " + why + ". The call fails.");
  if (is_request) {
    reply_error(peer, head->call, "worker " + members.called(id_) + " refuses the request: " + why);
  } else if (const auto call = calls_.take(head->call, peer)) {
    end_call(*call, "this worker refuses the answer: " + why);
  }
}

// --- what is sent ------------------------------------------------------------------------------------

Parts TransportAgent::Core::encode_checked(c10::intrusive_ptr<Message> message, uint64_t call, const Contexts& contexts,
                                           const Placement& placement, Staging& staging) const {
  Parts parts = encode(std::move(message), call, contexts, placement, staging);
  const uint64_t bytes = size_of(parts) + staging.bytes_in_pieces;
  if (bytes > options_.max_message_bytes) {
    throw std::runtime_error("a message of " + std::to_string(bytes) + " bytes is larger than max_message_bytes (" +
                             std::to_string(options_.max_message_bytes) + ") of this worker");
  }
  return parts;
}

// --- peers ------------------------------------------------------------------------------------------

void TransportAgent::Core::forget_loss(int peer) {
  std::lock_guard<std::mutex> lock(lost_mutex_);
  lost_.erase(peer);
  lost_now_ = lost_.size();
}

void TransportAgent::Core::lose(const Event& event) {
  const int peer = event.peer;
  const std::string& reason = event.reason;
  {
    std::lock_guard<std::mutex> lock(lost_mutex_);
    lost_[peer] = reason;
    lost_now_ = lost_.size();
  }
  ++lost_peers_;
  arriving_.lose(peer);
  for (const Calls::Call& call : calls_.take_all(peer)) {
    end_call(call, "the connection is lost: " + reason);
  }
  if (tell_lost_ && running_) {
    contained("while handling a lost worker", [&] { tell_lost_(peer, reason); });
  }
  tell_progress();
}

std::string TransportAgent::Core::why_lost(int peer) const {
  if (lost_now_ == 0) {
    return {};
  }
  std::lock_guard<std::mutex> lock(lost_mutex_);
  const auto found = lost_.find(peer);
  return found == lost_.end() ? std::string() : "the connection is lost: " + found->second;
}

void TransportAgent::Core::forget(int peer, const std::string& reason) {
  members.remove(peer,
                 reason);  // first, so that a request that the transport refuses afterwards fails with the right reason
  contained("while forgetting a peer", [&] { transport_->forget(peer); });
  for (const Calls::Call& call : calls_.take_all(peer)) {
    end_call(call, reason);
  }
  arriving_.forget(peer);
  forget_loss(peer);
  tell_progress();
}

// --- active calls -----------------------------------------------------------------------------------

bool TransportAgent::Core::is_idle() const {
  return active_requests_ == pending_requests_ + pending_own_requests_ && calls_.waiting() == 0;
}

bool TransportAgent::Core::has_awaited_futures() const {
  const std::lock_guard<std::mutex> lock(pending_mutex_);
  return std::any_of(pending_by_caller_.begin(), pending_by_caller_.end(), [&](const auto& pending) {
    return !not_waiting_.count(pending.first) && why_lost(pending.first).empty() && !members.has_left(pending.first);
  });
}

std::vector<int> TransportAgent::Core::callers_of_futures() const {
  const std::lock_guard<std::mutex> lock(pending_mutex_);
  std::vector<int> callers;
  for (const auto& pending : pending_by_caller_) {
    callers.push_back(pending.first);
  }
  return callers;
}

void TransportAgent::Core::note_not_waiting(int caller) {
  {
    const std::lock_guard<std::mutex> lock(pending_mutex_);
    not_waiting_.insert(caller);
  }
  tell_progress();
}

bool TransportAgent::Core::wait_until_idle(double seconds, bool waits_for_futures) {
  std::unique_lock<std::mutex> lock(idle_mutex_);
  ++idle_waiters_;
  idle_.wait_for(lock, std::chrono::duration<double>(seconds),
                 [&] { return is_idle() && !(waits_for_futures && has_awaited_futures()); });
  --idle_waiters_;
  return is_idle();
}

void TransportAgent::Core::tell_progress() {
  if (idle_waiters_ > 0) {
    std::lock_guard<std::mutex> lock(idle_mutex_);
    idle_.notify_all();
  }
}

Traffic TransportAgent::Core::traffic() const {
  return {sent_, answered_, received_, served_, static_cast<uint64_t>(pending_requests_)};
}

void TransportAgent::Core::add_gil_wait(std::chrono::microseconds wait) {
  ++gil_waits_;
  gil_wait_us_ += static_cast<uint64_t>(wait.count());
}

std::unordered_map<std::string, std::string> TransportAgent::Core::gil_metrics() const {
  const uint64_t waits = gil_waits_;
  return {{"agent.gil_average_wait_time_us", std::to_string(waits ? gil_wait_us_ / waits : 0)}};
}

std::unordered_map<std::string, std::string> TransportAgent::Core::metrics() const {
  std::unordered_map<std::string, std::string> found{
      // These names are torch's where torch's agent has the same metric.
      {"agent.thread_pool_size", std::to_string(options_.num_worker_threads)},
      {"agent.num_idle_threads", std::to_string(thread_pool_->waiting())},
      {"agent.client_active_calls", std::to_string(calls_.waiting())},
      {"agent.server_active_calls", std::to_string(active_requests_)},
      {"agent.server_active_async_calls", std::to_string(pending_requests_ + pending_own_requests_)},
      {"agent.threads", std::to_string(thread_pool_->threads())},
      {"agent.queued_requests", std::to_string(thread_pool_->queued())},
      {"agent.unanswered_bytes", std::to_string(calls_.unanswered_bytes())},
      {"agent.requests_sent", std::to_string(sent_)},
      {"agent.requests_received", std::to_string(received_)},
      {"agent.bytes_sent", std::to_string(bytes_sent_)},
      {"agent.bytes_received", std::to_string(bytes_received_)},
      {"agent.unfinished_messages", std::to_string(arriving_.size())},
      {"agent.timeouts", std::to_string(calls_.timeouts())},
      {"agent.late_answers", std::to_string(calls_.late_answers())},
      {"agent.bad_frames", std::to_string(bad_frames_)},
      {"agent.connections_lost", std::to_string(lost_peers_)},
      {"agent.unsent_answers", std::to_string(unsent_answers_)},
      {"agent.refused_requests", std::to_string(refused_requests_)},
      // A sum over all agents of this process.
      {"agent.contained_errors", std::to_string(noted_errors())},
  };
  for (const auto& [name, value] : transport_->metrics()) {
    if (is_number(value)) {  // all metrics are numbers; getDebugInfo() has the other values
      found["transport." + name] = value;
    }
  }
  return found;
}

std::unordered_map<std::string, std::string> TransportAgent::Core::debug_info() const {
  auto found = metrics();
  for (const auto& [name, value] : transport_->metrics()) {
    found["transport." + name] = value;
  }
  return found;
}

}  // namespace rpc_backends
