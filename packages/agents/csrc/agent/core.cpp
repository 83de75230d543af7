#include "agent/core.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "base/log.h"
#include "base/text.h"

namespace rpc_backends {

namespace {

// At shutdown: seconds for the last messages to be sent, and seconds for running requests to end.
constexpr double kLinger = 2.0;
constexpr double kStopTimeout = 5.0;

constexpr const char* kLosing = "while handling a lost worker";
constexpr const char* kForgetting = "while forgetting a peer";

bool is_number(const std::string& text) {
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  return !text.empty() && *end == 0;
}

}  // namespace

TransportAgent::Core::Core(const std::string& name, int id, std::shared_ptr<Transport> transport,
                           const AgentOptions& options)
    : AgentState(
          name, id, std::move(transport), options, [this](int peer) { return server_.is_behind(peer); },
          [this] { calls_.waiting().ask_for_pulse(); }),
      sender_(*this),
      calls_(*this, sender_,
             [this] {
               const bool has_unfinished = receiver_.drop_stale();
               const bool has_failed = calls_.release_failed_rrefs();
               server_.warn_if_full();
               return thread_pool->retry() || has_unfinished || has_failed;
             }),
      server_(*this, sender_),
      receiver_(*this, calls_, server_) {
  handle_own_message = [this](const Parts& parts) { receiver_.handle_own_message(parts); };
}

void TransportAgent::Core::start() {
  running = true;
  calls_.waiting().start();
  // The pool's threads keep this object.
  thread_pool->start([this, kept = shared_from_this()](Event& event) { handle(event); });
}

void TransportAgent::Core::stop() {
  const bool was_running = running.exchange(false);
  order_.close();
  contained("while closing the transport", [&] { transport->close(was_running ? kLinger : 0); });
  if (!was_running) {
    return;
  }
  calls_.end_all("the RPC agent of this worker has been shut down");
  calls_.waiting().stop();
  calls_.end_late();
  after_copies.stop();
  thread_pool->stop(kStopTimeout);
  contained("while dropping unfinished messages", [&] { receiver_.arriving().clear(); });
}

void TransportAgent::Core::handle(Event& event) {
  EventOrder::Handling handling(order_, event.order);
  switch (event.kind) {
    case Event::Kind::kMessage:
      counters.bytes_received += size_of(event.parts);
      receiver_.handle_message(event.peer, event.parts, handling);
      break;
    case Event::Kind::kLost:
      handling.wait_for_earlier();
      lose(event.peer, event.reason, event.order, handling);
      break;
    case Event::Kind::kFound:
      handling.wait_for_earlier();
      lost.remove(event.peer, event.order, calls_.waiting().next_id());
      break;
    case Event::Kind::kUnsent:
      handling.note();
      server_.take_unsent(event.peer, event.parts, valid_utf8(event.reason), false);
      break;
  }
}

void TransportAgent::Core::lose(int peer, std::string_view why, uint64_t order, EventOrder::Handling& event) {
  // The transport does not repeat the event, so the calls end although memory is short.
  std::string reason, text;
  std::string_view error = "the connection is lost";
  uint64_t calls = LostPeers::kAllCalls;
  const auto mark = [&] { calls = lost.add(peer, reason, order); };
  const bool is_marked = contained(kLosing, [&] {
    reason = valid_utf8(why);  // a peer may have written it
    text = "the connection is lost: " + reason;
    error = text;
    mark();
  });
  ++counters.lost_peers;
  if (calls == LostPeers::kAllCalls) {  // otherwise the peer has been found since, and what arrives goes on
    receiver_.arriving().lose(peer);
  }
  calls_.end_all(peer, error, event, calls);
  if (!is_marked) {
    contained(kLosing, mark);  // the calls may have given memory back
  }
  if (tell_lost_ && running) {
    contained(kLosing, [&] { tell_lost_(peer, reason); });
  }
  activity.tell();
}

void TransportAgent::Core::forget(int peer, const std::string& reason) {
  // First, so that a request that the transport refuses afterwards fails with the right reason.
  const bool is_removed = contained(kForgetting, [&] { members.remove(peer, reason); });
  contained(kForgetting, [&] { transport->forget(peer); });
  EventOrder::Handling none;
  calls_.end_all(peer, reason, none);
  lost.forget(peer);
  contained(kForgetting, [&] { receiver_.arriving().forget(peer); });
  activity.tell();
  if (!is_removed) {
    members.remove(peer, reason);  // the calls may have given memory back
  }
}

bool TransportAgent::Core::is_idle() const {
  return !activity.is_running() && calls_.waiting().waiting() == 0;
}

bool TransportAgent::Core::has_awaited_futures() const {
  return activity.has_pending_of([&](int caller) { return lost.why(caller).empty() && !members.has_left(caller); });
}

bool TransportAgent::Core::wait_until_idle(double seconds) {
  activity.wait(seconds, [&] { return is_idle(); });
  return is_idle();
}

bool TransportAgent::Core::wait_until_finished(double seconds, double interval, const std::function<void()>& ask) {
  const auto is_finished = [&] { return is_idle() && !has_awaited_futures(); };
  const auto begin = std::chrono::steady_clock::now();
  for (double left = seconds; left > 0 && !is_finished();) {
    ask();
    activity.wait(std::min(interval, left), is_finished);
    left = seconds - std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  return is_idle();
}

Traffic TransportAgent::Core::traffic() const {
  return {counters.sent, counters.answered, counters.received, counters.served,
          static_cast<uint64_t>(activity.pending())};
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
  std::unordered_map<std::string, std::string> values{
      // These names are torch's where torch's agent has the same metric.
      {"agent.thread_pool_size", std::to_string(options.num_worker_threads)},
      {"agent.num_idle_threads", std::to_string(thread_pool->waiting())},
      {"agent.client_active_calls", std::to_string(calls_.waiting().waiting())},
      {"agent.server_active_calls", std::to_string(activity.active())},
      {"agent.server_active_async_calls", std::to_string(activity.all_pending())},
      {"agent.threads", std::to_string(thread_pool->threads())},
      {"agent.queued_requests", std::to_string(thread_pool->queued())},
      {"agent.unanswered_bytes", std::to_string(calls_.waiting().unanswered_bytes())},
      {"agent.requests_sent", std::to_string(counters.sent)},
      {"agent.requests_received", std::to_string(counters.received)},
      {"agent.bytes_sent", std::to_string(counters.bytes_sent)},
      {"agent.bytes_received", std::to_string(counters.bytes_received)},
      {"agent.unfinished_messages", std::to_string(receiver_.arriving().size())},
      {"agent.timeouts", std::to_string(calls_.waiting().timeouts())},
      {"agent.late_answers", std::to_string(calls_.waiting().late_answers())},
      {"agent.bad_frames", std::to_string(counters.bad_frames)},
      {"agent.connections_lost", std::to_string(counters.lost_peers)},
      {"agent.unsent_answers", std::to_string(counters.unsent_answers)},
      {"agent.refused_requests", std::to_string(counters.refused_requests)},
      // A sum over all agents of this process.
      {"agent.contained_errors", std::to_string(noted_errors())},
  };
  for (const auto& [name, value] : transport->metrics()) {
    std::string text(value);
    if (is_number(text)) {  // all metrics are numbers; getDebugInfo() has the other values
      values["transport." + std::string(name)] = std::move(text);
    }
  }
  return values;
}

std::unordered_map<std::string, std::string> TransportAgent::Core::debug_info() const {
  auto values = metrics();
  for (const auto& [name, value] : transport->metrics()) {
    values["transport." + std::string(name)] = std::string(value);
  }
  return values;
}

}  // namespace rpc_backends
