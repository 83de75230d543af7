// The calls that this worker makes: from send() to the end of the future.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "agent/calls.h"
#include "agent/event_order.h"
#include "agent/message_sender.h"
#include "rpc/failed_rrefs.h"

namespace rpc_backends {

class OutgoingCalls {
 public:
  using Message = MessageSender::Message;
  using Error = MessageSender::Error;
  using WorkerInfo = TransportAgent::WorkerInfo;
  using DeviceMap = TransportAgent::DeviceMap;
  using JitFuture = TransportAgent::JitFuture;

  // `on_pulse`: as for Calls.
  OutgoingCalls(AgentState& agent, MessageSender& sender, std::function<bool()> on_pulse);

  // `device_map`: where the tensors go; if it is empty, the device map for the worker `to` counts. `recorded`: as for
  // TransportAgent::send_call().
  TransportAgent::SentCall send(const WorkerInfo& to, c10::intrusive_ptr<Message> message,
                                std::chrono::milliseconds timeout, const Contexts& contexts,
                                const DeviceMap& device_map, CallLog::Place* recorded);
  void take_answer(int peer, Decoded& answer, EventOrder::Handling& event);
  // End a call with an error, if it still waits for `peer`; the calls that wait for `peer` and have a number less than
  // `below`; all calls. end_all() throws nothing when memory is short: the calls end then with another text.
  void end(uint64_t call, int peer, const std::string& error);
  void end_all(int peer, std::string_view error, EventOrder::Handling& event, uint64_t below = LostPeers::kAllCalls);
  void end_all(std::string_view error);
  // Ends the calls that have timed out and for which no thread has been free yet. Nothing else ends them when the
  // agent stops.
  void end_late();

  // Returns whether to call it again.
  bool release_failed_rrefs();
  // See TransportAgent::answering_worker().
  std::string answering_worker() const;

  // The calls that wait for an answer.
  Calls& waiting() { return calls_; }
  const Calls& waiting() const { return calls_; }

 private:
  FuturePtr new_future(const DeviceMaps* maps) const;
  // Sends a request that is entered as `call`. An error ends the call.
  void send_request(int peer, uint64_t call, Parts parts, bool is_retried);
  void fail_request(int peer, uint64_t call, const std::string& reason, bool is_retried);
  void count_end(const Calls::Call& call);
  // Ends a call with an error, and records the end.
  void fail_call(const Calls::Call& call, const std::string& error);
  void end_call(const Calls::Call& call, std::string_view error);
  void fail_late(std::vector<Calls::Call> late);
  void end_late(uint64_t number);
  void end_late(const std::vector<Calls::Call>& late);

  AgentState& agent_;
  MessageSender& sender_;
  FailedRRefs failed_rrefs_;
  std::mutex late_mutex_;
  std::map<uint64_t, std::vector<Calls::Call>> late_;  // those that a job of the thread pool is to end, by its number
  uint64_t next_late_ = 1;
  Calls calls_;
};

}  // namespace rpc_backends
