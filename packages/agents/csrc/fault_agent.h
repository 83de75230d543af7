// An agent that stands in front of any other, and lets messages meet faults on their way.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "fault_log.h"
#include "fault_rules.h"

namespace rpc_backends {

class FaultWay;

class FaultInjectingAgent : public torch::distributed::rpc::RpcAgent {
 public:
  using WorkerInfo = torch::distributed::rpc::WorkerInfo;
  using Message = torch::distributed::rpc::Message;
  using JitFuture = torch::distributed::rpc::JitFuture;
  using DeviceMap = torch::distributed::rpc::DeviceMap;

  // `inner` does everything that is no fault; nobody else starts or stops it.
  explicit FaultInjectingAgent(std::shared_ptr<RpcAgent> inner);
  ~FaultInjectingAgent() override;

  c10::intrusive_ptr<JitFuture> send(const WorkerInfo& to, c10::intrusive_ptr<Message> message,
                                     float rpc_timeout_seconds, const DeviceMap& device_map) override;

  const WorkerInfo& getWorkerInfo(const std::string& name) const override;
  const WorkerInfo& getWorkerInfo(torch::distributed::rpc::worker_id_t id) const override;
  std::vector<WorkerInfo> getWorkerInfos() const override;
  void join(bool shutdown, float timeout) override;
  void sync() override;
  void startImpl() override;
  // Ends what is held here. The inner agent is shut down by whoever shuts down this one, with its own method,
  // which may be Python's; else by the destructor.
  void shutdownImpl() override;
  std::unordered_map<std::string, std::string> getMetrics() override;
  std::unordered_map<std::string, std::string> getDebugInfo() override;
  DeviceMap getDeviceMap(const WorkerInfo& to) const override;
  const std::vector<c10::Device>& getDevices() const override;

  // From here on no message meets a fault; returns when none is held any more.
  void settle();
  // What this agent itself has to say, without the inner one's.
  std::unordered_map<std::string, std::string> own_metrics();
  // Has the inner agent measure what this one is told to.
  void pass_on_profiling();

  FaultRules& rules();
  FaultLog& log();

 private:
  void addGilWaitTime(std::chrono::microseconds wait) override;

  const std::shared_ptr<RpcAgent> inner_;
  const std::shared_ptr<FaultWay> way_;
  std::atomic<uint64_t> gil_waits_{0}, gil_wait_us_{0};
};

}  // namespace rpc_backends
