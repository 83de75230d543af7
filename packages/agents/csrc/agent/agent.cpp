#include "agent/agent.h"

#include <torch/csrc/distributed/rpc/request_callback_impl.h>

#include <stdexcept>

#include "agent/core.h"
#include "rpc/futures.h"
#include "rpc_backends_agents/python.h"

namespace rpc_backends {

namespace rpc = torch::distributed::rpc;

TransportAgent::TransportAgent(const std::string& name, int id, std::shared_ptr<Transport> transport,
                               const AgentOptions& options)
    // Torch's base class needs a callback, and deletes it together with the agent, when threads may still be running.
    // So these threads use another callback, which the core owns.
    : RpcAgent(WorkerInfo(name, static_cast<int64_t>(id)), std::make_unique<rpc::RequestCallbackImpl>(),
               options.rpc_timeout),
      core_(std::make_shared<Core>(name, id, std::move(transport), options)) {
  core_->set_allocator();
}

TransportAgent::~TransportAgent() {
  const WithoutGil without;
  shutdown();
}

c10::intrusive_ptr<rpc::JitFuture> TransportAgent::send(const WorkerInfo& to, c10::intrusive_ptr<Message> message,
                                                        float rpc_timeout_seconds, const DeviceMap& device_map) {
  return send_call(to, std::move(message), rpc_timeout_seconds, device_map, {}).future;
}

TransportAgent::SentCall TransportAgent::send_call(const WorkerInfo& to, c10::intrusive_ptr<Message> message,
                                                   float rpc_timeout_seconds, const DeviceMap& device_map,
                                                   const Contexts& contexts, CallLog::Place* recorded) {
  TORCH_CHECK(message->isRequest(), "send() sends requests only; the agent sends responses itself");
  if (is_forked()) {
    throw std::runtime_error(c10::str("worker '", workerInfo_.name_, "' cannot call '", to.name_,
                                      "' in a process that was forked from the worker's. Call in the worker's process, "
                                      "or start the child with the spawn method and call init_rpc in it."));
  }
  if (!rpcAgentRunning_) {
    throw std::runtime_error(c10::str("worker '", workerInfo_.name_, "' cannot call '", to.name_,
                                      "': RPC is no longer running on this worker. Call init_rpc first."));
  }
  auto timeout = rpcTimeout_.load();
  if (rpc_timeout_seconds != rpc::kUnsetRpcTimeout) {
    timeout =
        std::chrono::milliseconds(static_cast<int64_t>(representable(rpc_timeout_seconds) * rpc::kSecToMsConversion));
    if (rpc_timeout_seconds > 0 && timeout.count() == 0) {
      timeout = std::chrono::milliseconds(1);  // 0 would mean no timeout
    }
  }
  return core_->calls().send(to, std::move(message), timeout, contexts, device_map, recorded);
}

void TransportAgent::set_devices(DeviceMaps maps) {
  core_->devices.set(std::move(maps));
}

DeviceMap TransportAgent::getDeviceMap(const WorkerInfo& to) const {
  const DeviceMaps* const maps = core_->devices.get();
  if (maps == nullptr) {
    return {};
  }
  const auto map = maps->requests.find(to.name_);
  return map == maps->requests.end() ? DeviceMap() : map->second;
}

const std::vector<c10::Device>& TransportAgent::getDevices() const {
  const DeviceMaps* const maps = core_->devices.get();
  return maps == nullptr ? RpcAgent::getDevices() : maps->devices;
}

void TransportAgent::set_interceptors(std::shared_ptr<InterceptorChain> interceptors) {
  TORCH_CHECK(!rpcAgentRunning_, "interceptors are set before the agent starts");
  core_->interceptors = std::move(interceptors);
}

void TransportAgent::set_call_log(std::shared_ptr<CallLog> log) {
  TORCH_CHECK(!rpcAgentRunning_, "calls are recorded from the start of the agent");
  core_->call_log = std::move(log);
}

void TransportAgent::set_policy(std::shared_ptr<RequestPolicy> policy) {
  TORCH_CHECK(!rpcAgentRunning_, "a policy is set before the agent starts");
  core_->policy = std::move(policy);
}

const rpc::WorkerInfo& TransportAgent::getWorkerInfo(const std::string& name) const {
  return core_->members.by_name(name);
}

const rpc::WorkerInfo& TransportAgent::getWorkerInfo(rpc::worker_id_t id) const {
  return core_->members.by_id(id);
}

std::vector<rpc::WorkerInfo> TransportAgent::getWorkerInfos() const {
  return core_->members.all();
}

void TransportAgent::join(bool /*shutdown*/, float timeout) {
  const double seconds = timeout > 0 ? timeout : std::chrono::duration<double>(getRpcTimeout()).count();
  const double limit = seconds > 0 ? seconds : 1e9;
  expect_idle(core_->wait_until_idle(limit), limit);
}

void TransportAgent::finish(float timeout, float interval, const std::function<void()>& ask) {
  expect_idle(core_->wait_until_finished(timeout, interval, ask), timeout);
}

std::vector<int> TransportAgent::callers_of_futures() const {
  return core_->callers_of_futures();
}

void TransportAgent::note_not_waiting(int caller) {
  core_->note_not_waiting(caller);
}

size_t TransportAgent::calls_to(int peer) const {
  return core_->calls_to(peer);
}

void TransportAgent::expect_idle(bool is_idle, double seconds) const {
  if (!is_idle) {
    throw std::runtime_error(c10::str("worker '", workerInfo_.name_, "' still had active calls after ", seconds,
                                      " s; shutdown(graceful=False) does not wait for them"));
  }
}

void TransportAgent::startImpl() {
  rpcAgentRunning_ = true;
  core_->start();
}

void TransportAgent::shutdownImpl() {
  core_->stop();
}

std::unordered_map<std::string, std::string> TransportAgent::getMetrics() {
  auto metrics = core_->metrics();
  if (isGILProfilingEnabled()) {
    metrics.merge(core_->gil_metrics());
  }
  return metrics;
}

std::string TransportAgent::listen() {
  return std::string(core_->transport->listen(workerInfo_.id_, workerInfo_.name_));
}

void TransportAgent::learn(int peer, const std::string& name, const std::string& address) {
  core_->transport->learn(peer, name, address);
}

void TransportAgent::on_lost(std::function<void(int, const std::string&)> tell) {
  core_->on_lost(std::move(tell));
}

std::unordered_map<std::string, std::string> TransportAgent::getDebugInfo() {
  auto info = getMetrics();
  info.merge(core_->debug_info());
  return info;
}

Members& TransportAgent::members() {
  return core_->members;
}

Traffic TransportAgent::traffic() const {
  return core_->traffic();
}

size_t TransportAgent::num_worker_threads() const {
  return core_->options.num_worker_threads;
}

std::string TransportAgent::answering_worker() const {
  return core_->calls().answering_worker();
}

void TransportAgent::forget(int peer, const std::string& reason) {
  core_->forget(peer, reason);
}

void TransportAgent::addGilWaitTime(std::chrono::microseconds wait) {
  core_->add_gil_wait(wait);
}

}  // namespace rpc_backends
