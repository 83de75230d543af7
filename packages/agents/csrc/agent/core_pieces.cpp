// Messages with tensors on accelerators. Large tensors are sent piece by piece while the next pieces are copied to host
// memory, and copied to the receiver's device as they arrive. A transport may also move memory of accelerators itself.
#include <c10/core/StreamGuard.h>

#include <deque>
#include <utility>

#include "agent/core.h"
#include "base/log.h"

namespace rpc_backends {

void TransportAgent::Core::set_allocator() {
  transport_->set_allocator([weak = weak_from_this(), memory = received_memory_](Memory where, size_t size) {
    const auto self = weak.lock();
    if (!self || where.is_host()) {
      throw std::runtime_error("this worker reserves no memory of a device for that");
    }
    if (size > self->options_.max_message_bytes) {
      throw std::runtime_error("a part of " + std::to_string(size) + " bytes is larger than max_message_bytes (" +
                               std::to_string(self->options_.max_message_bytes) + ") of this worker");
    }
    const c10::Device wanted(std::string(where.type) + ":" + std::to_string(where.index));
    return self->with_devices([&](const std::vector<c10::Device>& known) {
      (void)known_device(static_cast<uint8_t>(wanted.type()), static_cast<uint8_t>(wanted.index()), known);
      return memory->allocate(wanted, size);
    });
  });
}

// --- what is sent ------------------------------------------------------------------------------------

void TransportAgent::Core::allow_ways(int peer, Placement& placement) const {
  if (peer == id_) {
    return;  // messages to itself are copied through host memory
  }
  placement.session = session_;
  placement.is_moved = [this](c10::DeviceType type) { return transport_->moves(memory_of({type, 0}).type); };
}

// A message whose copies run.
struct TransportAgent::Core::Staged {
  std::deque<Piece> pieces;  // those that are still to be sent; the last one has no parts
  std::function<void(Parts)> send_piece;
  std::function<void(const Error&)> then;
};

void TransportAgent::Core::after(Staging staging, std::function<void(Parts)> send_piece,
                                 std::function<void(const Error&)> then) {
  staging.copies.record();
  auto staged = std::make_shared<Staged>(Staged{std::move(staging.pieces), std::move(send_piece), std::move(then)});
  staged->pieces.push_back({std::move(staging.copies), {}});
  Copies first = std::move(staged->pieces.front().copies);
  // On another thread than that of the copies, which must not wait for anything else.
  after_copies_.run(std::move(first), [self = shared_from_this(), staged] {
    self->thread_pool_->post([self, staged] { self->go_on(staged); });
  });
}

void TransportAgent::Core::go_on(const std::shared_ptr<Staged>& staged) {
  std::deque<Piece>& pieces = staged->pieces;
  bool waits = false;
  const Error error = error_in([&] {
    while (!pieces.empty()) {
      Copies& copies = pieces.front().copies;
      if (!copies.have_ended()) {
        waits = true;
        after_copies_.run(std::move(copies), [self = shared_from_this(), staged] {
          self->thread_pool_->post([self, staged] { self->go_on(staged); });
        });
        return;
      }
      copies.wait();
      if (Parts parts = std::move(pieces.front().parts); !parts.empty()) {
        staged->send_piece(std::move(parts));
      }
      pieces.pop_front();
    }
  });
  if (waits && !error) {
    return;
  }
  for (Piece& unsent : pieces) {  // so that this thread does not wait for their copies
    contained("while waiting for a copy", [&] { after_copies_.run(std::move(unsent.copies)); });
  }
  pieces.clear();
  staged->then(error);
}

void TransportAgent::Core::send_piece(int peer, Parts parts, bool reply) {
  if (const std::string lost = reply ? std::string() : why_lost(peer); !lost.empty()) {
    throw TransportError(lost);
  }
  bytes_sent_ += size_of(parts);
  transport_->send(peer, std::move(parts), reply);
}

// --- what arrives -----------------------------------------------------------------------------------

void TransportAgent::Core::handle_in_pieces(int peer, const Parts& parts, EventOrder::Handling& event) {
  std::optional<ArrivingMessage::Whole> whole;
  const Error bad = error_in([&] { whole = is_piece(parts) ? add_piece(peer, parts) : add_message(peer, parts); });
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

std::optional<ArrivingMessage::Whole> TransportAgent::Core::add_piece(int peer, const Parts& parts) {
  const PieceHead head = PieceHead::read(parts);
  const ArrivingMessages::Key key{peer, head.kind, head.call, head.session};
  if (head.kind == FrameKind::kResponse && !calls_.waits(head.call, peer)) {
    return std::nullopt;  // the call has ended
  }
  const auto message = arriving_.find_or_add(key);
  calls_.ask_for_pulse();
  Copies copies;
  auto whole = with_devices([&](const std::vector<c10::Device>& known) {
    const bool on_cpu = head.device_type == static_cast<uint8_t>(c10::DeviceType::CPU);
    const c10::Device device =
        on_cpu ? c10::Device(c10::kCPU) : known_device(head.device_type, head.device_index, known);
    return message->add_piece(head, parts[1], device, known, copies,
                              [&](uint64_t bytes) { arriving_.reserve(key, bytes); });
  });
  if (!copies.empty()) {
    after_copies_.run(std::move(copies));
  }
  if (whole) {
    arriving_.remove(key);
  }
  return whole;
}

std::optional<ArrivingMessage::Whole> TransportAgent::Core::add_message(int peer, const Parts& parts) {
  const Head head = read_head(parts);
  limits_.check(head, parts);
  const ArrivingMessages::Key key{peer, head.kind, head.call, head.session};
  if (head.kind == FrameKind::kResponse && !calls_.waits(head.call, peer)) {
    (void)calls_.take(head.call, peer);  // counts it as late
    return std::nullopt;
  }
  const auto message = arriving_.find_or_add(key);
  calls_.ask_for_pulse();
  auto whole = with_devices([&](const std::vector<c10::Device>& known) {
    return message->add_message(head, parts, known, [&](uint64_t bytes) { arriving_.reserve(key, bytes); });
  });
  if (whole || message->is_dropped()) {
    arriving_.remove(key);
  }
  return whole;
}

bool TransportAgent::Core::drop_stale() {
  const auto is_awaited = [this](const ArrivingMessages::Key& key) { return calls_.waits(key.call, key.peer); };
  for (const ArrivingMessages::Key& key : arriving_.drop_stale(is_awaited)) {
    const std::string who = members.called(key.peer);
    warn_seldom("unfinished request of " + who, "RPC: part of a request of " + who + " has arrived, and then nothing " +
                                                    "from that worker for a minute, or for some seconds after a lost " +
                                                    "connection. The request is dropped.");
    const auto answer = [self = shared_from_this(), key] {
      self->reply_error(key.peer, key.call,
                        "worker " + self->members.called(self->id_) +
                            " has received only a part of the request, and then nothing for too long");
    };
    contained("while dropping a request", [&] { thread_pool_->post(answer); });
  }
  return arriving_.size() > 0;
}

}  // namespace rpc_backends
