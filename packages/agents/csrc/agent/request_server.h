// The requests of other workers, and this worker's own to itself: from their arrival to the answer.
#pragma once

#include <torch/csrc/distributed/rpc/request_callback.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/answers.h"
#include "agent/message_sender.h"
#include "inspect/request_inspector.h"
#include "rpc/early_deletions.h"
#include "rpc/futures.h"

namespace rpc_backends {

class RequestServer {
 public:
  using Message = MessageSender::Message;

  RequestServer(AgentState& agent, MessageSender& sender);

  // Serves a request from `peer`, also if there is an error. `bytes`: the size of its message. `streams`: the current
  // streams of the function.
  void serve(int peer, Decoded request, uint64_t bytes, const std::vector<c10::Stream>& streams);
  // Answers with an error, which is cut to a small size.
  void answer_with_error(int peer, uint64_t call, const std::string& text);
  // Handles an answer that could not be sent: sends an error instead. If the answer was already that error, closes the
  // connection, unless it is lost anyway.
  void take_unsent(int peer, const Parts& parts, const std::string& why, bool is_lost);

  // Whether the peer must read its earlier answers before it gets further ones.
  bool is_behind(int peer) { return answers_.is_behind(peer); }
  // Logs a warning if requests have waited long for a thread.
  void warn_if_full();

 private:
  class IncomingCall;
  using Error = MessageSender::Error;
  using JitFuture = TransportAgent::JitFuture;
  using OnAnswer = std::function<void(JitFuture&)>;
  using CreationPtr = std::shared_ptr<const EarlyDeletions::Creation>;

  void begin(int peer, Decoded request, uint64_t bytes, std::vector<c10::Stream> streams);
  // Runs a request as soon as possible. `span`: the span in which it runs. `creation`: null unless it is of
  // rpc.remote().
  void execute(c10::intrusive_ptr<Message> request, int peer, uint64_t bytes, const SpanContext& span,
               std::vector<c10::Stream> streams, CreationPtr creation, OnAnswer on_answer);
  // The RRef that a request of another worker creates for itself; empty for all other requests.
  std::optional<CreatedRRef> created_by(int peer, const Message& request) const;
  // For a request of rpc.remote(): an error goes to the RRef that it creates, and its caller is answered as torch
  // answers when the function fails. torch itself does so only for errors of the function, and to_here() waits for
  // others.
  OnAnswer with_rref_failed(const Message& request, const CreationPtr& creation, OnAnswer on_answer);
  // Counts requests of `caller` whose functions have returned futures without a value.
  void count_pending(int caller, int64_t change);
  // Does not throw. `streams`: those on which the function ran.
  void answer_request(int peer, uint64_t call, JitFuture& answer, const std::vector<c10::Stream>& streams);
  // Returns the parts of an error if the message cannot be sent.
  Parts encode_answer(int peer, uint64_t call, JitFuture& answer, Staging& staging);
  // Where the tensors of an answer to `peer` go. `maps` are this worker's, and may be null.
  Placement answer_placement(int peer, const DeviceMaps* maps) const;
  void deliver_answer(int peer, uint64_t call, Parts parts);
  void answer_failed(int peer, uint64_t call, const Error& error);
  // Counts an answer to `peer` that has left.
  void end_answered(int peer);
  // Counts a request as served without an answer.
  void end_without_answer(int peer);
  void send_answer(int peer, uint64_t call, Parts parts);

  AgentState& agent_;
  MessageSender& sender_;
  const std::shared_ptr<const torch::distributed::rpc::RequestCallback> callback_;
  const std::shared_ptr<EarlyDeletions> early_deletions_;
  Answers answers_;
};

}  // namespace rpc_backends
