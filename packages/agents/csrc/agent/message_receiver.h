// Decodes the messages that arrive, whole or in pieces, which are copied to the receiver's device as they arrive.
// Passes requests to the server, and answers to the calls. Refuses invalid messages.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/event_order.h"
#include "agent/outgoing_calls.h"
#include "agent/request_server.h"
#include "wire/codec.h"
#include "wire/pieces.h"

namespace rpc_backends {

class MessageReceiver {
 public:
  MessageReceiver(AgentState& agent, OutgoingCalls& calls, RequestServer& requests);

  // Gives the transport its allocator; before it listens.
  void set_allocator();

  // `peer`: the sender. `event`: the event that delivered the message.
  void handle_message(int peer, const Parts& parts, EventOrder::Handling& event);
  void handle_own_message(const Parts& parts);

  // Refuses requests that were not finished in time; returns whether there are unfinished messages.
  bool drop_stale();
  // The messages that have arrived in part.
  ArrivingMessages& arriving() { return arriving_; }
  const ArrivingMessages& arriving() const { return arriving_; }

 private:
  // `streams`: the current streams of this worker's accelerators. `whole`: the message, if it came in pieces.
  void handle_decoded(int peer, const Parts& parts, EventOrder::Handling& event,
                      const std::vector<c10::Stream>& streams, const ArrivingMessage::Whole* whole = nullptr);
  Decoded decode_message(const Parts& parts, Copies& copies, const ArrivingMessage::Whole* whole);
  // Calls `work` with this worker's accelerators, and again if that throws UnknownDevice and there are new ones.
  template <typename Work>
  auto with_devices(const Work& work) -> decltype(work(std::vector<c10::Device>()));
  // Handles an invalid message: fails its call if the head is readable, otherwise closes the connection.
  void refuse(int peer, const Parts& parts, const std::string& why);
  // Handles a piece, or a message that has pieces.
  void handle_in_pieces(int peer, const Parts& parts, EventOrder::Handling& event);
  std::optional<ArrivingMessage::Whole> add_piece(int peer, const Parts& parts);
  std::optional<ArrivingMessage::Whole> add_message(int peer, const Parts& parts);
  // Fails a call whose request was dropped before it was finished.
  void answer_unfinished(int peer, uint64_t call);

  AgentState& agent_;
  OutgoingCalls& calls_;
  RequestServer& requests_;
  const Limits limits_;
  // Shared with the transport's allocator.
  const std::shared_ptr<ReceivedMemory> received_memory_ = std::make_shared<ReceivedMemory>();
  ArrivingMessages arriving_;
};

}  // namespace rpc_backends
