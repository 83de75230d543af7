// An agent in front of any other agent; it passes that agent's messages to interceptors.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "agent/agent.h"
#include "intercept/interceptor_chain.h"
#include "record/call_log.h"
#include "record/failed_calls.h"
#include "record/forward_spans.h"
#include "rpc_backends_agents/forks.h"
#include "wire/frame.h"

namespace rpc_backends {

class Recorder;
class Telemetry;

class InterceptingAgent : public torch::distributed::rpc::RpcAgent {
 public:
  using WorkerInfo = torch::distributed::rpc::WorkerInfo;
  using Message = torch::distributed::rpc::Message;
  using JitFuture = torch::distributed::rpc::JitFuture;
  using DeviceMap = torch::distributed::rpc::DeviceMap;

  // `inner` does everything else; only this agent starts and stops it.
  explicit InterceptingAgent(std::shared_ptr<RpcAgent> inner);
  ~InterceptingAgent() override;

  c10::intrusive_ptr<JitFuture> send(const WorkerInfo& to, c10::intrusive_ptr<Message> message,
                                     float rpc_timeout_seconds, const DeviceMap& device_map) override;

  const WorkerInfo& getWorkerInfo(const std::string& name) const override;
  const WorkerInfo& getWorkerInfo(torch::distributed::rpc::worker_id_t id) const override;
  std::vector<WorkerInfo> getWorkerInfos() const override;
  void join(bool shutdown, float timeout) override;
  void sync() override;
  void startImpl() override;
  // Ends the calls that are held here. The caller then shuts down the inner agent with that agent's own method, which
  // may be in Python. If the caller does not, the destructor shuts it down.
  void shutdownImpl() override;
  std::unordered_map<std::string, std::string> getMetrics() override;
  std::unordered_map<std::string, std::string> getDebugInfo() override;
  DeviceMap getDeviceMap(const WorkerInfo& to) const override;
  const std::vector<c10::Device>& getDevices() const override;

  // Records the requests that this worker sends, and those that arrive at a TransportAgent; only before the agent
  // starts.
  void record(std::shared_ptr<Recorder> recorder);
  // Reports the calls as spans and metrics; only before the agent starts.
  void report(std::shared_ptr<Telemetry> telemetry);
  // See TransportAgent::answering_worker(). In front of torch's agents it is known if calls are recorded or reported.
  std::string answering_worker() const;
  // Whether interceptors see requests that arrive.
  bool shows_incoming() const { return transport_agent_ != nullptr; }
  InterceptorChain& interceptors() { return *interceptors_; }
  // Like TransportAgent::is_forked().
  bool is_forked() const { return birthplace_.is_elsewhere(); }

 private:
  void addGilWaitTime(std::chrono::microseconds wait) override;
  // Sends a request, and writes the call into the log if there is one.
  c10::intrusive_ptr<JitFuture> record_and_send(const WorkerInfo& to, c10::intrusive_ptr<Message> message,
                                                float rpc_timeout_seconds, std::chrono::milliseconds timeout,
                                                const DeviceMap& device_map);
  // Sends a request through the interceptors.
  TransportAgent::SentCall pass_on(const WorkerInfo& to, c10::intrusive_ptr<Message> message, float rpc_timeout_seconds,
                                   std::chrono::milliseconds timeout, const DeviceMap& device_map,
                                   const Contexts& contexts);
  void set_call_log(std::shared_ptr<CallLog> log);

  const Birthplace birthplace_;
  const std::shared_ptr<RpcAgent> inner_;
  const std::shared_ptr<TransportAgent> transport_agent_;  // the same agent if it is a TransportAgent, or else null
  const std::shared_ptr<InterceptorChain> interceptors_;
  std::shared_ptr<Recorder> recorder_;    // null if there is none
  std::shared_ptr<CallLog> call_log_;     // null if calls are neither recorded nor reported
  std::shared_ptr<Telemetry> telemetry_;  // null if calls are not reported
  ForwardSpans forward_spans_;
  std::shared_ptr<FailedCalls> failed_calls_;  // delays the errors of calls; null if nothing does
  std::atomic<uint64_t> gil_waits_{0}, gil_wait_us_{0};
};

}  // namespace rpc_backends
