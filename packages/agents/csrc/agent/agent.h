// An RPC agent for torch that sends its messages over a Transport.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "agent/members.h"
#include "agent/request_policy.h"
#include "intercept/interceptor_chain.h"
#include "record/call_log.h"
#include "rpc_backends_agents/forks.h"
#include "rpc_backends_agents/transport.h"
#include "wire/devices.h"
#include "wire/frame.h"

namespace rpc_backends {

// As Settings in settings.py, where the defaults are.
struct AgentOptions {
  size_t num_worker_threads;
  std::chrono::milliseconds rpc_timeout;
  uint64_t max_message_bytes;
  // If this many bytes of requests to one peer are unanswered, further calls to that peer wait.
  uint64_t max_unanswered_bytes;
};

// Call counts of this worker; join() compares the counts of all workers.
struct Traffic {
  uint64_t sent = 0;      // requests to other workers
  uint64_t answered = 0;  // of these, how many have ended, with an answer or an error
  uint64_t received = 0;  // requests from other workers
  uint64_t served = 0;    // of these, how many were answered
  uint64_t pending = 0;   // of these, how many wait for the value of a future that their function has returned
};

class TransportAgent : public torch::distributed::rpc::RpcAgent {
 public:
  using WorkerInfo = torch::distributed::rpc::WorkerInfo;
  using Message = torch::distributed::rpc::Message;
  using JitFuture = torch::distributed::rpc::JitFuture;
  using DeviceMap = torch::distributed::rpc::DeviceMap;

  TransportAgent(const std::string& name, int id, std::shared_ptr<Transport> transport, const AgentOptions& options);
  ~TransportAgent() override;

  c10::intrusive_ptr<JitFuture> send(const WorkerInfo& to, c10::intrusive_ptr<Message> message,
                                     float rpc_timeout_seconds, const DeviceMap& device_map) override;

  // A call that was sent: its future, and the number that the agent has given it.
  struct SentCall {
    c10::intrusive_ptr<JitFuture> future;
    uint64_t number = 0;
  };

  // The same, with context that interceptors have attached. `recorded`: the call in the log of set_call_log(). The
  // agent records its number and its end, unless send_call() throws; null if the caller records it.
  SentCall send_call(const WorkerInfo& to, c10::intrusive_ptr<Message> message, float rpc_timeout_seconds,
                     const DeviceMap& device_map, const Contexts& contexts, CallLog::Place* recorded = nullptr);
  // Sets the interceptors for incoming requests; only before the agent starts.
  void set_interceptors(std::shared_ptr<InterceptorChain> interceptors);
  // Records the requests that arrive; only before the agent starts.
  void set_call_log(std::shared_ptr<CallLog> log);
  // Sets which requests of other workers are served; only before the agent starts.
  void set_policy(std::shared_ptr<RequestPolicy> policy);
  // How many requests it serves at a time.
  size_t num_worker_threads() const;

  const WorkerInfo& getWorkerInfo(const std::string& name) const override;
  const WorkerInfo& getWorkerInfo(torch::distributed::rpc::worker_id_t id) const override;
  std::vector<WorkerInfo> getWorkerInfos() const override;

  // Waits until this worker has no active calls. The Python subclass finds out whether the whole group has none.
  // Waits for active calls and running functions, but not for futures that functions have returned: as in torch's own
  // agent, these count as long as their caller waits, and then its call is active. Throws std::runtime_error.
  void join(bool shutdown, float timeout) override;
  // The same, and also waits for those futures; leaves those that have no value after `timeout` seconds, which is not
  // 0. While it waits, it calls `ask`, at once and then every `interval` seconds.
  void finish(float timeout, float interval, const std::function<void()>& ask);
  // The other workers whose requests may wait for such futures; and notes that one of them does not wait for the
  // answers.
  std::vector<int> callers_of_futures() const;
  void note_not_waiting(int caller);
  // How many calls of this worker wait for an answer of `peer`.
  size_t calls_to(int peer) const;
  void sync() override {}
  void startImpl() override;
  void shutdownImpl() override;

  // Numbers only; getDebugInfo() also has the transport's other values.
  std::unordered_map<std::string, std::string> getMetrics() override;
  std::unordered_map<std::string, std::string> getDebugInfo() override;

  // Call listen() and learn() of the transport.
  std::string listen();
  void learn(int peer, const std::string& name, const std::string& address);
  // Called on a thread of the agent when a peer is lost.
  void on_lost(std::function<void(int, const std::string&)> tell);

  // Sets where tensors go: by the name of the callee, and for answers by the id of the caller; and the accelerators
  // that RPC uses here. May be called again when workers join.
  void set_devices(DeviceMaps maps);
  DeviceMap getDeviceMap(const WorkerInfo& to) const override;
  const std::vector<c10::Device>& getDevices() const override;

  Members& members();
  Traffic traffic() const;
  // The name of the worker whose answer this thread handles, or which it has called last; may be empty.
  std::string answering_worker() const;
  // Whether this process was forked from the agent's process, so it cannot use the agent.
  bool is_forked() const { return birthplace_.is_elsewhere(); }
  // Fails the calls that wait for a worker that has left, and removes the worker.
  void forget(int peer, const std::string& reason);

 private:
  void addGilWaitTime(std::chrono::microseconds wait) override;
  // Throws std::runtime_error unless `is_idle`: calls are still active after `seconds`.
  void expect_idle(bool is_idle, double seconds) const;

  // The state that the agent's threads use; it outlives the agent if they do.
  class Core;
  const Birthplace birthplace_;
  const std::shared_ptr<Core> core_;
};

}  // namespace rpc_backends
