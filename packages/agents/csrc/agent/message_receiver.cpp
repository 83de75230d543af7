#include "agent/message_receiver.h"

#include <c10/core/StreamGuard.h>

#include <utility>

#include "agent/request_policy.h"
#include "base/log.h"
#include "python/python_state.h"
#include "rpc/message_kinds.h"

namespace rpc_backends {

MessageReceiver::MessageReceiver(AgentState& agent, OutgoingCalls& calls, RequestServer& requests)
    : agent_(agent),
      calls_(calls),
      requests_(requests),
      limits_{agent.options.max_message_bytes},
      arriving_(agent.options.max_message_bytes, agent.options.max_unanswered_bytes) {}

template <typename Work>
auto MessageReceiver::with_devices(const Work& work) -> decltype(work(std::vector<c10::Device>())) {
  static const std::vector<c10::Device> none;
  const DeviceMaps* maps = agent_.devices.get();
  try {
    return work(maps == nullptr ? none : maps->devices);
  } catch (const UnknownDevice&) {
    // The sender may have joined the group just now.
    if (!agent_.members.refresh() || agent_.devices.get() == maps) {
      throw;
    }
    return work(agent_.devices.get()->devices);
  }
}

void MessageReceiver::handle_own_message(const Parts& parts) {
  EventOrder::Handling none;
  handle_message(agent_.id, parts, none);
}

void MessageReceiver::handle_message(int peer, const Parts& parts, EventOrder::Handling& event) {
  if (is_in_pieces(parts)) {
    handle_in_pieces(peer, parts, event);
    return;
  }
  const DeviceMaps* const maps = agent_.devices.get();
  if (maps == nullptr || maps->devices.empty()) {
    handle_decoded(peer, parts, event, {});
    return;
  }
  const std::vector<c10::Stream> streams = streams_from_pool(maps->devices);
  const c10::MultiStreamGuard guard(streams);
  handle_decoded(peer, parts, event, streams);
}

Decoded MessageReceiver::decode_message(const Parts& parts, Copies& copies, const ArrivingMessage::Whole* whole) {
  static const ArrivedStorages none;
  const ArrivedStorages& arrived = whole == nullptr ? none : whole->storages;
  return with_devices([&](const std::vector<c10::Device>& known) {
    return decode(parts, limits_, known, copies, arrived, received_memory_.get());
  });
}

void MessageReceiver::handle_decoded(int peer, const Parts& parts, EventOrder::Handling& event,
                                     const std::vector<c10::Stream>& streams, const ArrivingMessage::Whole* whole) {
  std::optional<Decoded> decoded;
  // decode() throws BadFrame, or std::bad_alloc if there is not enough memory.
  const auto bad = error_in([&] {
    Copies copies;
    decoded = decode_message(parts, copies, whole);
    if (!copies.empty()) {
      copies.record();
      agent_.after_copies.run(std::move(copies));
    }
  });
  if (bad) {
    refuse(peer, parts, *bad);
    return;
  }
  if (agent_.policy && decoded->kind == FrameKind::kAnswer && peer != agent_.id) {
    const auto& payload = decoded->message->payload();
    const std::string refusal = agent_.policy->answer_refusal(agent_.members.name_of(peer), decoded->message->type(),
                                                              {payload.data(), payload.size()});
    if (!refusal.empty()) {
      refuse(peer, parts, refusal);
      return;
    }
  }
  if (is_python(decoded->message->type())) {
    PythonState::keep();
  }
  if (decoded->kind == FrameKind::kAnswer) {
    calls_.take_answer(peer, *decoded, event);
    return;
  }
  event.note();
  const uint64_t bytes = size_of(parts) + (whole == nullptr ? 0 : whole->bytes);
  requests_.serve(peer, std::move(*decoded), bytes, streams);
}

void MessageReceiver::refuse(int peer, const Parts& parts, const std::string& why) {
  ++agent_.counters.bad_frames;
  std::optional<Head> head;
  (void)error_in([&] { head = read_head(parts); });
  const std::string who = agent_.members.called(peer);
  if (!head) {
    const std::string reason = "an invalid message: " + why;
    warn("RPC: " + who + " has sent " + reason + ". The connection is closed.");
    agent_.transport->reject(peer, reason);
    return;
  }
  const bool is_request = head->kind == FrameKind::kRequest;
  warn_seldom("bad message of " + who, "RPC: " + who + " has sent " + (is_request ? "a request" : "an answer") +
                                           " that this worker refuses: " + why + ". The call fails.");
  if (is_request) {
    requests_.answer_with_error(peer, head->call,
                                "worker " + agent_.members.called(agent_.id) + " refuses the request: " + why);
  } else {
    calls_.end(head->call, peer, "this worker refuses the answer: " + why);
  }
}

void MessageReceiver::set_allocator() {
  agent_.transport->set_allocator(
      [this, weak = agent_.weak_from_this(), memory = received_memory_](Memory where, size_t size) {
        const auto kept = weak.lock();
        if (!kept || where.is_host()) {
          throw std::runtime_error("this worker reserves no memory of a device for that");
        }
        if (size > agent_.options.max_message_bytes) {
          throw std::runtime_error("a part of " + std::to_string(size) + " bytes is larger than max_message_bytes (" +
                                   std::to_string(agent_.options.max_message_bytes) + ") of this worker");
        }
        const c10::Device wanted(std::string(where.type) + ":" + std::to_string(where.index));
        return with_devices([&](const std::vector<c10::Device>& known) {
          (void)known_device(static_cast<uint8_t>(wanted.type()), static_cast<uint8_t>(wanted.index()), known);
          return memory->allocate(wanted, size);
        });
      });
}

void MessageReceiver::handle_in_pieces(int peer, const Parts& parts, EventOrder::Handling& event) {
  std::optional<ArrivingMessage::Whole> whole;
  const auto bad = error_in([&] { whole = is_piece(parts) ? add_piece(peer, parts) : add_message(peer, parts); });
  if (bad) {
    std::shared_ptr<ArrivingMessage> message;
    (void)error_in([&] {
      const Head head = read_head(parts);
      message = arriving_.find({peer, head.kind, head.call, head.session});
    });
    if (!message || message->drop()) {
      refuse(peer, parts, *bad);
    }
    return;
  }
  if (whole) {
    const c10::MultiStreamGuard guard(whole->streams);
    handle_decoded(peer, whole->parts, event, whole->streams, &*whole);
  }
}

std::optional<ArrivingMessage::Whole> MessageReceiver::add_piece(int peer, const Parts& parts) {
  const PieceHead head = PieceHead::read(parts);
  const ArrivingMessages::Key key{peer, head.kind, head.call, head.session};
  if (head.kind == FrameKind::kAnswer && !calls_.waiting().waits(head.call, peer)) {
    return std::nullopt;  // the call has ended
  }
  const auto message = arriving_.find_or_add(key);
  calls_.waiting().ask_for_pulse();
  Copies copies;
  auto whole = with_devices([&](const std::vector<c10::Device>& known) {
    const bool on_cpu = head.device_type == static_cast<uint8_t>(c10::DeviceType::CPU);
    const c10::Device device =
        on_cpu ? c10::Device(c10::kCPU) : known_device(head.device_type, head.device_index, known);
    return message->add_piece(head, parts[1], device, known, copies,
                              [&](uint64_t bytes) { arriving_.reserve(key, bytes); });
  });
  if (!copies.empty()) {
    agent_.after_copies.run(std::move(copies));
  }
  if (whole) {
    arriving_.remove(key);
  }
  return whole;
}

std::optional<ArrivingMessage::Whole> MessageReceiver::add_message(int peer, const Parts& parts) {
  const Head head = read_head(parts);
  limits_.check(head, parts);
  const ArrivingMessages::Key key{peer, head.kind, head.call, head.session};
  if (head.kind == FrameKind::kAnswer && !calls_.waiting().waits(head.call, peer)) {
    (void)calls_.waiting().take(head.call, peer);  // counts it as late
    return std::nullopt;
  }
  const auto message = arriving_.find_or_add(key);
  calls_.waiting().ask_for_pulse();
  auto whole = with_devices([&](const std::vector<c10::Device>& known) {
    return message->add_message(head, parts, known, [&](uint64_t bytes) { arriving_.reserve(key, bytes); });
  });
  if (whole || message->is_dropped()) {
    arriving_.remove(key);
  }
  return whole;
}

bool MessageReceiver::drop_stale() {
  const auto is_awaited = [this](const ArrivingMessages::Key& key) {
    return calls_.waiting().waits(key.call, key.peer);
  };
  for (const ArrivingMessages::Key& key : arriving_.drop_stale(is_awaited)) {
    contained("while dropping a request", [&] { answer_unfinished(key.peer, key.call); });
  }
  return arriving_.size() > 0;
}

void MessageReceiver::answer_unfinished(int peer, uint64_t call) {
  agent_.thread_pool->post([this, kept = agent_.shared_from_this(), peer, call] {
    requests_.answer_with_error(peer, call,
                                "worker " + agent_.members.called(agent_.id) +
                                    " has received only a part of the request, and then nothing for too long");
  });
  const std::string who = agent_.members.called(peer);
  warn_seldom("unfinished request of " + who,
              "RPC: part of a request of " + who + " has arrived, and then nothing " +
                  "from that worker for a minute, or no more of it for ten minutes or for " +
                  "some seconds after a lost connection. The request is dropped.");
}

}  // namespace rpc_backends
