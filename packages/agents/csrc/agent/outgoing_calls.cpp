#include "agent/outgoing_calls.h"

#include <torch/csrc/distributed/rpc/utils.h>

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "inspect/request_inspector.h"
#include "rpc/message_kinds.h"
#include "rpc/own_rrefs.h"

namespace rpc_backends {

namespace rpc = torch::distributed::rpc;

namespace {

constexpr std::chrono::milliseconds kRetryDelay{100};

}  // namespace

OutgoingCalls::OutgoingCalls(AgentState& agent, MessageSender& sender, std::function<bool()> on_pulse)
    : agent_(agent),
      sender_(sender),
      calls_(
          agent.options.max_unanswered_bytes, [this](std::vector<Calls::Call> late) { fail_late(std::move(late)); },
          std::move(on_pulse)) {}

TransportAgent::SentCall OutgoingCalls::send(const WorkerInfo& to, c10::intrusive_ptr<Message> message,
                                             std::chrono::milliseconds timeout, const Contexts& contexts,
                                             const DeviceMap& device_map, CallLog::Place* recorded) {
  const int peer = to.id_;
  const auto started = Clock::now();
  const bool may_wait = is_of_a_program(message->type()) && !ThreadPool::is_member() && peer != agent_.id;
  const bool is_retried = is_retried_by_torch(message->type());
  const uint64_t call = calls_.next_id();
  last_peer = has_result(message->type()) ? peer : last_peer;
  if (recorded != nullptr) {
    CallLog::sent(recorded, call);
  }
  const DeviceMaps* const maps = agent_.devices.get();
  Placement placement{nullptr, [&to] { return to.name_; }, true};
  if (!device_map.empty()) {
    placement.map = &device_map;
  } else if (maps != nullptr) {
    const auto map = maps->requests.find(to.name_);
    placement.map = map == maps->requests.end() ? nullptr : &map->second;
  }
  sender_.allow_ways(peer, placement);
  const auto created = created_rref(inspect(*message));
  const std::optional<rpc::ForkId> rref = created ? std::optional(created->fork) : std::nullopt;
  Staging staging;
  Parts parts = sender_.encode_checked(std::move(message), call, contexts, placement, staging);
  const uint64_t bytes = size_of(parts) + staging.bytes_in_pieces;
  const std::weak_ptr<void> unsent = staging.pieces.empty() ? last_to_leave(parts) : staging.unsent;
  FuturePtr future =
      calls_.add(call, {peer, new_future(maps), bytes, unsent, timeout, {}, {}, recorded, rref}, started, may_wait);
  if (!future) {
    future = new_future(maps);
    fail_call({peer, future, bytes, unsent, timeout, {}, {}, recorded, rref}, timeout_text(timeout));
    return {future, call};
  }
  if (peer != agent_.id) {
    ++agent_.counters.sent;  // here, because a call in pieces may end before its last message is sent
  }
  if (staging.empty()) {
    send_request(peer, call, std::move(parts), is_retried);
    return {future, call};
  }
  auto error = error_in([&] {
    const auto kept = agent_.shared_from_this();
    sender_.after(
        std::move(staging), [this, kept, peer](Parts piece) { sender_.send_piece(peer, std::move(piece), false); },
        [this, kept, peer, call, parts = std::move(parts), is_retried](const Error& unsent) {
          if (unsent) {
            fail_request(peer, call, *unsent, is_retried);
          } else {
            send_request(peer, call, parts, is_retried);
          }
        });
  });
  if (!error && !agent_.running) {
    error = "the RPC agent of this worker has been shut down";
  }
  if (error) {
    end(call, peer, *error);
  }
  return {future, call};
}

FuturePtr OutgoingCalls::new_future(const DeviceMaps* maps) const {
  return maps == nullptr ? c10::make_intrusive<JitFuture>(at::AnyClassType::get())
                         : c10::make_intrusive<JitFuture>(at::AnyClassType::get(), maps->devices);
}

void OutgoingCalls::send_request(int peer, uint64_t call, Parts parts, bool is_retried) {
  auto error = error_in([&] {
    if (peer == agent_.id) {
      // Like any other call, but without the transport; the received message shares no memory with the sent one.
      agent_.thread_pool->post(
          [this, kept = agent_.shared_from_this(), copied = copy(parts)] { agent_.handle_own_message(copied); });
      return;
    }
    agent_.counters.bytes_sent += size_of(parts);
    const std::string lost = agent_.lost.why(peer);
    if (!lost.empty()) {
      throw TransportError(lost);
    }
    agent_.transport->send(peer, std::move(parts), false);
  });
  if (!error && !agent_.running) {
    error = "the RPC agent of this worker has been shut down";
  }
  if (error) {
    fail_request(peer, call, *error, is_retried);
  }
}

void OutgoingCalls::fail_request(int peer, uint64_t call, const std::string& reason, bool is_retried) {
  // The caller found the worker just before it left, so the transport does not know it any more.
  const std::string left = agent_.members.how_it_left(peer);
  const std::string& error = left.empty() ? reason : left;
  if (is_retried && agent_.running) {
    calls_.fail_after(kRetryDelay, call, error);
  } else {
    end(call, peer, error);
  }
}

void OutgoingCalls::end(uint64_t call, int peer, const std::string& error) {
  if (const auto taken = calls_.take(call, peer)) {
    end_call(*taken, error);
  }
}

void OutgoingCalls::end_all(int peer, std::string_view error, EventOrder::Handling& event, uint64_t below) {
  const Calls::Taken calls = calls_.take_all(peer, below);
  event.note();  // later events need not wait for the callbacks of these calls, which may be slow
  for (const auto& [number, call] : calls) {
    end_call(call, error);
  }
}

void OutgoingCalls::end_all(std::string_view error) {
  for (const auto& [number, call] : calls_.take_all()) {
    end_call(call, error);
  }
}

void OutgoingCalls::take_answer(int peer, Decoded& answer, EventOrder::Handling& event) {
  const auto call = calls_.take(answer.call, peer);
  event.note();  // a loss can no longer fail this call, and its callbacks may be slow
  if (!call) {
    return;  // the call has timed out
  }
  count_end(*call);
  completing(call->future, [&] {
    if (answer.message->type() == MessageType::EXCEPTION) {
      const std::vector<char>& text = answer.message->payload();
      fail_call(*call, valid_utf8({text.data(), text.size()}));
      return;
    }
    if (call->recorded != nullptr) {
      agent_.call_log->answered(call->recorded, *answer.message, CallLog::now_us());
    }
    last_peer = peer;
    complete(call->future, c10::IValue(std::move(answer.message)), std::move(answer.on_devices));
  });
  agent_.activity.tell();
}

std::string OutgoingCalls::answering_worker() const {
  return last_peer < 0 ? std::string() : agent_.members.name_of(last_peer);
}

void OutgoingCalls::count_end(const Calls::Call& call) {
  if (call.peer != agent_.id) {
    ++agent_.counters.answered;
  }
}

void OutgoingCalls::fail_call(const Calls::Call& call, const std::string& error) {
  if (call.recorded != nullptr) {
    agent_.call_log->failed(call.recorded, error);
  }
  const bool is_own = call.peer == agent_.id;
  bool has_first = false;
  if (call.rref) {
    const auto cause = std::make_exception_ptr(std::runtime_error(error));
    if (is_own) {
      fail_own_rref(*call.rref, cause);
    } else {
      has_first = FailedRRefs::note(*call.rref, cause);
    }
  }
  fail(call.future, error);
  if (call.rref && !is_own && rpc::getRPCErrorType(*call.future) == rpc::RPCErrorType::UNKNOWN_ERROR) {
    failed_rrefs_.add(*call.rref, has_first);
    calls_.ask_for_pulse();
  }
}

bool OutgoingCalls::release_failed_rrefs() {
  if (failed_rrefs_.is_due()) {
    // On another thread, because torch sends messages and this thread handles all timeouts.
    agent_.thread_pool->post([this, kept = agent_.shared_from_this()] { failed_rrefs_.release(); });
  }
  return !failed_rrefs_.is_empty();
}

void OutgoingCalls::end_call(const Calls::Call& call, std::string_view error) {
  count_end(call);
  completing(call.future,
             [&] { fail_call(call, ("RPC to " + agent_.members.called(call.peer) + " failed: ").append(error)); });
  agent_.activity.tell();
}

void OutgoingCalls::fail_late(std::vector<Calls::Call> late) {
  // On another thread, because callbacks of these futures may be slow and this thread handles all timeouts.
  uint64_t number = 0;
  const bool is_posted = contained("while ending calls", [&] {
    {
      const std::lock_guard<std::mutex> lock(late_mutex_);
      number = next_late_++;
      late_.emplace(number, std::move(late));
    }
    agent_.thread_pool->post([this, kept = agent_.shared_from_this(), number] { end_late(number); });
  });
  if (!is_posted) {
    end_late(number);
    end_late(late);  // emplace() takes the calls only if there is memory
  }
}

void OutgoingCalls::end_late(uint64_t number) {
  decltype(late_)::node_type calls;
  {
    const std::lock_guard<std::mutex> lock(late_mutex_);
    calls = late_.extract(number);
  }
  if (calls) {
    end_late(calls.mapped());
  }
}

void OutgoingCalls::end_late(const std::vector<Calls::Call>& late) {
  for (const Calls::Call& call : late) {
    if (!call.error.empty()) {
      end_call(call, call.error);
      continue;
    }
    count_end(call);
    completing(call.future, [&] { fail_call(call, timeout_text(call.timeout)); });
  }
  agent_.activity.tell();
}

void OutgoingCalls::end_late() {
  decltype(late_) late;
  {
    const std::lock_guard<std::mutex> lock(late_mutex_);
    late.swap(late_);
  }
  for (const auto& [number, calls] : late) {
    end_late(calls);
  }
}

}  // namespace rpc_backends
