#include "fault_agent.h"

#include <torch/csrc/distributed/rpc/request_callback_impl.h>

#include "fault_way.h"

namespace rpc_backends {

namespace rpc = torch::distributed::rpc;

FaultInjectingAgent::FaultInjectingAgent(std::shared_ptr<RpcAgent> inner)
    : RpcAgent(static_cast<const RpcAgent&>(*inner).getWorkerInfo(), std::make_unique<rpc::RequestCallbackImpl>(),
               inner->getRpcTimeout()),
      inner_(inner),
      way_(std::make_shared<FaultWay>(std::move(inner), workerInfo_.name_)) {}

FaultInjectingAgent::~FaultInjectingAgent() {
  if (!rpcAgentRunning_) {
    return;
  }
  // Nobody waits for a thread that needs what this one holds.
  const bool holds = Py_IsInitialized() != 0 && PyGILState_Check() == 1;
  if (holds) {
    pybind11::gil_scoped_release release;
    shutdown();
    inner_->shutdown();
  } else {
    shutdown();
    inner_->shutdown();
  }
}

c10::intrusive_ptr<rpc::JitFuture> FaultInjectingAgent::send(const WorkerInfo& to, c10::intrusive_ptr<Message> message,
                                                             float rpc_timeout_seconds, const DeviceMap& device_map) {
  const auto default_timeout = rpcTimeout_.load();
  if (inner_->getRpcTimeout() != default_timeout) {
    inner_->setRpcTimeout(default_timeout);  // Python sets it on the agent that is installed
  }
  if (way_->rules.idle()) {
    return inner_->send(to, std::move(message), rpc_timeout_seconds, device_map);
  }
  auto timeout = default_timeout;
  if (rpc_timeout_seconds != rpc::kUnsetRpcTimeout) {
    timeout = std::chrono::milliseconds(static_cast<int64_t>(rpc_timeout_seconds * rpc::kSecToMsConversion));
  }
  return way_->send(to, std::move(message), rpc_timeout_seconds, timeout, device_map);
}

const rpc::WorkerInfo& FaultInjectingAgent::getWorkerInfo(const std::string& name) const {
  return inner_->getWorkerInfo(name);
}

const rpc::WorkerInfo& FaultInjectingAgent::getWorkerInfo(rpc::worker_id_t id) const {
  return inner_->getWorkerInfo(id);
}

std::vector<rpc::WorkerInfo> FaultInjectingAgent::getWorkerInfos() const {
  return inner_->getWorkerInfos();
}

void FaultInjectingAgent::join(bool shutdown, float timeout) {
  settle();
  inner_->join(shutdown, timeout);
}

void FaultInjectingAgent::sync() {
  inner_->sync();
}

void FaultInjectingAgent::startImpl() {
  way_->rules.start();
  inner_->setTypeResolver(getTypeResolver());
  inner_->start();
}

void FaultInjectingAgent::shutdownImpl() {
  way_->stop();
}

void FaultInjectingAgent::settle() {
  way_->settle();
}

std::unordered_map<std::string, std::string> FaultInjectingAgent::own_metrics() {
  auto found = way_->rules.metrics();
  if (found.empty()) {
    return found;
  }
  found["faults.held"] = std::to_string(way_->held_now());
  return found;
}

void FaultInjectingAgent::pass_on_profiling() {
  if (inner_->isGILProfilingEnabled() != isGILProfilingEnabled()) {
    inner_->enableGILProfiling(isGILProfilingEnabled());
  }
}

std::unordered_map<std::string, std::string> FaultInjectingAgent::getMetrics() {
  pass_on_profiling();
  auto found = own_metrics();
  if (isGILProfilingEnabled()) {
    const uint64_t waits = gil_waits_;
    found["agent.gil_average_wait_time_us"] = std::to_string(waits ? gil_wait_us_ / waits : 0);
  }
  found.merge(inner_->getMetrics());
  return found;
}

std::unordered_map<std::string, std::string> FaultInjectingAgent::getDebugInfo() {
  auto found = getMetrics();
  found.merge(inner_->getDebugInfo());
  return found;
}

rpc::DeviceMap FaultInjectingAgent::getDeviceMap(const WorkerInfo& to) const {
  return inner_->getDeviceMap(to);
}

const std::vector<c10::Device>& FaultInjectingAgent::getDevices() const {
  return inner_->getDevices();
}

FaultRules& FaultInjectingAgent::rules() {
  return way_->rules;
}

FaultLog& FaultInjectingAgent::log() {
  return way_->log;
}

void FaultInjectingAgent::addGilWaitTime(std::chrono::microseconds wait) {
  ++gil_waits_;
  gil_wait_us_ += static_cast<uint64_t>(wait.count());
}

}  // namespace rpc_backends
