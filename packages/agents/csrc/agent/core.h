// The state that the threads of an agent share, and what they do with messages.
#pragma once

#include <torch/csrc/distributed/rpc/request_callback.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "agent/agent.h"
#include "agent/answers.h"
#include "agent/calls.h"
#include "agent/event_order.h"
#include "agent/members.h"
#include "agent/thread_pool.h"
#include "record/call_log.h"
#include "rpc/failed_rrefs.h"
#include "wire/codec.h"
#include "wire/devices.h"
#include "wire/pieces.h"

namespace rpc_backends {

class TransportAgent::Core : public std::enable_shared_from_this<TransportAgent::Core> {
 public:
  Core(const std::string& name, int id, std::shared_ptr<Transport> transport, const AgentOptions& options);

  void start();
  void stop();

  // `device_map`: where the tensors go; if it is empty, the device map for the worker `to` counts. `recorded`: as for
  // TransportAgent::send_call().
  SentCall send(const WorkerInfo& to, c10::intrusive_ptr<Message> message, std::chrono::milliseconds timeout,
                const Contexts& contexts, const DeviceMap& device_map, CallLog::Place* recorded);
  void forget(int peer, const std::string& reason);

  // Waits until this worker has no active calls and runs no requests; returns false after `seconds`. A request whose
  // function has returned a future counts only with `waits_for_futures`, if its caller is another worker that has
  // neither left nor been lost, and never makes the result false: the future may never get a value. If its caller waits
  // for it, the call is active there.
  bool wait_until_idle(double seconds, bool waits_for_futures);
  Traffic traffic() const;
  // See TransportAgent::answering_worker().
  std::string answering_worker() const;
  std::unordered_map<std::string, std::string> metrics() const;
  std::unordered_map<std::string, std::string> debug_info() const;
  std::unordered_map<std::string, std::string> gil_metrics() const;
  void add_gil_wait(std::chrono::microseconds wait);

  // All only before start().
  void set_interceptors(std::shared_ptr<InterceptorChain> interceptors) { interceptors_ = std::move(interceptors); }
  void set_call_log(std::shared_ptr<CallLog> log) { call_log_ = std::move(log); }
  void on_lost(std::function<void(int, const std::string&)> tell) { tell_lost_ = std::move(tell); }

  Transport& transport() { return *transport_; }
  // Gives the transport its allocator; before it listens.
  void set_allocator();

  Members members;
  Devices devices;

 private:
  class IncomingCall;
  struct Staged;
  using Error = std::optional<std::string>;
  using OnResponse = std::function<void(JitFuture&)>;

  // What arrives.
  void handle(Event& event);
  // `peer`: the sender, which is this worker for a call to itself. `event`: the event that delivered the message.
  void handle_message(int peer, const Parts& parts, EventOrder::Handling& event);
  // The same, with `streams` as the current streams of this worker's accelerators. `whole`: the message, if it came in
  // pieces.
  void handle_decoded(int peer, const Parts& parts, EventOrder::Handling& event,
                      const std::vector<c10::Stream>& streams, const ArrivingMessage::Whole* whole = nullptr);
  void handle_own_message(const Parts& parts);
  Decoded decode_message(const Parts& parts, Copies& copies, const ArrivingMessage::Whole* whole);
  // Calls `work` with this worker's accelerators, and again if that throws UnknownDevice and there are new ones.
  template <typename Work>
  auto with_devices(const Work& work) -> decltype(work(std::vector<c10::Device>()));
  // Handles an invalid message: fails its call if the head is readable, otherwise closes the connection.
  void refuse(int peer, const Parts& parts, const std::string& why);
  void lose(const Event& event);
  void forget_loss(int peer);
  // Returns why `peer` cannot be reached; empty if it is not lost.
  std::string why_lost(int peer) const;

  // What is sent.
  Parts encode_checked(c10::intrusive_ptr<Message> message, uint64_t call, const Contexts& contexts,
                       const Placement& placement, Staging& staging) const;

  // Messages in pieces, both ways (core_pieces.cpp).
  // Sends the pieces of a message with `send_piece`, each when its copies have ended; then runs `then`, with the error
  // if there was one. Both run on threads of the agent. Call it with the streams on which the copies began.
  void after(Staging staging, std::function<void(Parts)> send_piece, std::function<void(const Error&)> then);
  void go_on(const std::shared_ptr<Staged>& staged);
  void send_piece(int peer, Parts parts, bool reply);
  // Lets large tensors go to another worker in pieces, and others directly if the transport moves them.
  void allow_ways(int peer, Placement& placement) const;
  // Handles a piece, or a message that has pieces.
  void handle_in_pieces(int peer, const Parts& parts, EventOrder::Handling& event);
  std::optional<ArrivingMessage::Whole> add_piece(int peer, const Parts& parts);
  std::optional<ArrivingMessage::Whole> add_message(int peer, const Parts& parts);
  // Refuses the requests that nobody finishes; returns whether there are unfinished messages.
  bool drop_stale();

  bool is_idle() const;
  // Whether a worker that can be reached may wait for the value of a future that a function has returned.
  bool has_awaited_futures() const;
  void tell_progress();

  // Calls of this worker (core_calls.cpp).
  FuturePtr new_future(const DeviceMaps* maps) const;
  // Sends a request that is entered as `call`. An error ends the call.
  void send_request(int peer, uint64_t call, Parts parts, bool is_retried);
  void fail_request(int peer, uint64_t call, const std::string& reason, bool is_retried);
  void take_answer(int peer, Decoded& answer, EventOrder::Handling& event);
  void count_end(const Calls::Call& call);
  // Ends a call with an error, and records the end.
  void fail_call(const Calls::Call& call, const std::string& error);
  void end_call(const Calls::Call& call, const std::string& error);
  void fail_late(std::vector<Calls::Call> late);
  // Returns whether to call it again.
  bool release_failed_rrefs();

  // Requests (core_requests.cpp).
  void serve(int peer, Decoded request, uint64_t bytes, std::vector<c10::Stream> streams);
  // Runs a request from `peer` as soon as possible; `bytes` is the size of its message. `span`: the span in which it
  // runs. `streams`: the current streams of the function.
  void execute(c10::intrusive_ptr<Message> request, int peer, uint64_t bytes, const SpanContext& span,
               std::vector<c10::Stream> streams, OnResponse on_response);
  // Counts requests of `caller` whose functions have returned futures without a value.
  void count_pending(int caller, int64_t change);
  // Logs a warning if requests have waited long for a thread.
  void warn_if_full();
  // Does not throw. `streams`: those on which the function ran.
  void reply(int peer, uint64_t call, JitFuture& response, const std::vector<c10::Stream>& streams);
  // Returns the parts of an error if the message cannot be sent.
  Parts encode_reply(int peer, uint64_t call, JitFuture& response, Staging& staging);
  // Where the tensors of an answer to `peer` go. `maps` are this worker's, and may be null.
  Placement answer_placement(int peer, const DeviceMaps* maps) const;
  void send_reply(int peer, uint64_t call, Parts parts);
  void reply_failed(int peer, uint64_t call, const Error& error);
  // Counts a reply to `peer` that has left.
  void end_reply(int peer);
  // Counts a request as served without an answer.
  void reply_nothing(int peer);
  // Answers with an error, which is cut to a small size.
  void reply_error(int peer, uint64_t call, const std::string& text);
  void send_answer(int peer, uint64_t call, Parts parts);
  // Handles an answer that could not be sent: sends an error instead. If the answer was already that error, closes the
  // connection, unless it is lost anyway.
  void take_unsent(int peer, const Parts& parts, const std::string& why, bool is_lost);

  const int id_;
  const AgentOptions options_;
  const Limits limits_;
  const std::shared_ptr<Transport> transport_;
  const std::unique_ptr<torch::distributed::rpc::RequestCallback> callback_;
  std::function<void(int, const std::string&)> tell_lost_;
  std::shared_ptr<InterceptorChain> interceptors_;
  std::shared_ptr<CallLog> call_log_;  // null if calls are not recorded
  Answers answers_;
  FailedRRefs failed_rrefs_;
  const std::shared_ptr<ThreadPool> thread_pool_;
  Calls calls_;
  EventOrder order_;
  // Shared with the transport's allocator.
  const std::shared_ptr<ReceivedMemory> received_memory_ = std::make_shared<ReceivedMemory>();
  ArrivingMessages arriving_;
  const uint64_t session_;  // tells the messages in pieces of this agent from those of an earlier one with its id
  AfterCopies after_copies_;

  mutable std::mutex lost_mutex_;
  std::unordered_map<int, std::string> lost_;
  std::atomic<size_t> lost_now_{0};

  std::atomic<bool> running_{false};
  std::atomic<uint64_t> sent_{0}, answered_{0}, received_{0}, served_{0};
  std::atomic<uint64_t> bytes_sent_{0}, bytes_received_{0};
  std::atomic<uint64_t> bad_frames_{0}, lost_peers_{0}, unsent_answers_{0}, refused_requests_{0};
  std::atomic<int64_t> active_requests_{0};
  // Of these, the requests whose functions have returned futures without a value: those of other workers, and this
  // one's.
  std::atomic<int64_t> pending_requests_{0}, pending_own_requests_{0};
  mutable std::mutex pending_mutex_;
  std::unordered_map<int, int64_t> pending_by_caller_;  // those of other workers
  std::atomic<uint64_t> gil_waits_{0}, gil_wait_us_{0};

  std::mutex idle_mutex_;
  std::condition_variable idle_;
  std::atomic<int> idle_waiters_{0};
};

template <typename Work>
auto TransportAgent::Core::with_devices(const Work& work) -> decltype(work(std::vector<c10::Device>())) {
  static const std::vector<c10::Device> none;
  const DeviceMaps* maps = devices.get();
  try {
    return work(maps == nullptr ? none : maps->devices);
  } catch (const UnknownDevice&) {
    // The sender may have joined the group just now.
    if (!members.refresh() || devices.get() == maps) {
      throw;
    }
    return work(devices.get()->devices);
  }
}

}  // namespace rpc_backends
