// Encodes messages, and sends those with tensors on accelerators: large tensors piece by piece, while the next pieces
// are copied to host memory. A transport may also move memory of accelerators itself.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "agent/agent_state.h"
#include "wire/codec.h"
#include "wire/pieces.h"

namespace rpc_backends {

class MessageSender {
 public:
  using Error = std::optional<std::string>;
  using Message = torch::distributed::rpc::Message;

  explicit MessageSender(AgentState& agent);

  Parts encode_checked(c10::intrusive_ptr<Message> message, uint64_t call, const Contexts& contexts,
                       const Placement& placement, Staging& staging) const;
  // Lets large tensors go to another worker in pieces, and others directly if the transport moves them.
  void allow_ways(int peer, Placement& placement) const;
  // Sends the pieces of a message with `send_piece`, each when its copies have ended; then runs `then`, with the error
  // if there was one. Both run on threads of the agent. Call it with the streams on which the copies began.
  void after(Staging staging, std::function<void(Parts)> send_piece, std::function<void(const Error&)> then);
  void send_piece(int peer, Parts parts, bool reply);

 private:
  struct Staged;

  void go_on(const std::shared_ptr<Staged>& staged);
  void wait_and_go_on(Copies copies, const std::shared_ptr<Staged>& staged);

  AgentState& agent_;
  const uint64_t session_;  // tells the messages in pieces of this agent from those of an earlier one with its id
};

}  // namespace rpc_backends
