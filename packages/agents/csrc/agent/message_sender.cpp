#include "agent/message_sender.h"

#include <deque>
#include <random>
#include <utility>

#include "base/log.h"

namespace rpc_backends {

namespace {

uint64_t random_session() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;  // not 0
}

}  // namespace

MessageSender::MessageSender(AgentState& agent) : agent_(agent), session_(random_session()) {}

Parts MessageSender::encode_checked(c10::intrusive_ptr<Message> message, uint64_t call, const Contexts& contexts,
                                    const Placement& placement, Staging& staging) const {
  Parts parts = encode(std::move(message), call, contexts, placement, staging);
  const uint64_t bytes = size_of(parts) + staging.bytes_in_pieces;
  if (bytes > agent_.options.max_message_bytes) {
    throw std::runtime_error("a message of " + std::to_string(bytes) + " bytes is larger than max_message_bytes (" +
                             std::to_string(agent_.options.max_message_bytes) + ") of this worker");
  }
  return parts;
}

void MessageSender::allow_ways(int peer, Placement& placement) const {
  if (peer == agent_.id) {
    return;  // messages to itself are copied through host memory
  }
  placement.session = session_;
  placement.is_moved = [this](c10::DeviceType type) { return agent_.transport->moves(memory_of({type, 0}).type); };
}

// A message whose copies run.
struct MessageSender::Staged {
  std::deque<Piece> pieces;  // those that are still to be sent; the last one has no parts
  std::function<void(Parts)> send_piece;
  std::function<void(const Error&)> then;
};

void MessageSender::after(Staging staging, std::function<void(Parts)> send_piece,
                          std::function<void(const Error&)> then) {
  staging.copies.record();
  auto staged = std::make_shared<Staged>(Staged{std::move(staging.pieces), std::move(send_piece), std::move(then)});
  staged->pieces.push_back({std::move(staging.copies), {}});
  Copies first = std::move(staged->pieces.front().copies);
  wait_and_go_on(std::move(first), staged);
}

void MessageSender::wait_and_go_on(Copies copies, const std::shared_ptr<Staged>& staged) {
  // On another thread than that of the copies, which must not wait for anything else.
  agent_.after_copies.run(std::move(copies), [this, kept = agent_.shared_from_this(), staged] {
    agent_.thread_pool->post([this, kept, staged] { go_on(staged); });
  });
}

void MessageSender::go_on(const std::shared_ptr<Staged>& staged) {
  std::deque<Piece>& pieces = staged->pieces;
  bool waits = false;
  const Error error = error_in([&] {
    while (!pieces.empty()) {
      Copies& copies = pieces.front().copies;
      if (!copies.have_ended()) {
        waits = true;
        wait_and_go_on(std::move(copies), staged);
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
    contained("while waiting for a copy", [&] { agent_.after_copies.run(std::move(unsent.copies)); });
  }
  pieces.clear();
  staged->then(error);
}

void MessageSender::send_piece(int peer, Parts parts, bool reply) {
  if (const std::string lost = reply ? std::string() : agent_.lost.why(peer); !lost.empty()) {
    throw TransportError(lost);
  }
  agent_.counters.bytes_sent += size_of(parts);
  agent_.transport->send(peer, std::move(parts), reply);
}

}  // namespace rpc_backends
