// The agent that carries torch's RPC over a Transport.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "forks.h"
#include "frame.h"
#include "interceptor_chain.h"
#include "members.h"
#include "rpc_backends_agents/transport.h"

namespace rpc_backends {

struct AgentOptions {
  size_t num_worker_threads = 16;
  std::chrono::milliseconds rpc_timeout{60000};
  uint64_t max_message_bytes = uint64_t{1} << 34;
  // What may be on its way to one peer, unanswered, before calls to it wait for room.
  uint64_t max_unanswered_bytes = uint64_t{1} << 30;
};

// How much has been done so far; joining compares these of all workers.
struct Traffic {
  uint64_t sent = 0;      // requests to other workers
  uint64_t answered = 0;  // of these, those that are over: by an answer or an error
  uint64_t received = 0;  // requests of other workers
  uint64_t served = 0;    // of these, those that were answered
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

  // The same, with what interceptors have attached.
  c10::intrusive_ptr<JitFuture> send(const WorkerInfo& to, c10::intrusive_ptr<Message> message,
                                     float rpc_timeout_seconds, const DeviceMap& device_map, const Contexts& contexts);
  // Shows the requests that arrive to interceptors; before the agent starts.
  void set_interceptors(std::shared_ptr<InterceptorChain> interceptors);

  const WorkerInfo& getWorkerInfo(const std::string& name) const override;
  const WorkerInfo& getWorkerInfo(torch::distributed::rpc::worker_id_t id) const override;
  std::vector<WorkerInfo> getWorkerInfos() const override;

  // Waits until this worker has nothing under way. That nobody has is found out among the workers.
  void join(bool shutdown, float timeout) override;
  void sync() override {}
  void startImpl() override;
  void shutdownImpl() override;

  // Numbers; getDebugInfo() has texts of the transport too.
  std::unordered_map<std::string, std::string> getMetrics() override;
  std::unordered_map<std::string, std::string> getDebugInfo() override;

  // Has the transport listen, and returns its address; has it take note of a peer.
  std::string listen();
  void learn(int peer, const std::string& name, const std::string& address);
  // Called on a thread of the agent when a peer is lost.
  void on_lost(std::function<void(int, const std::string&)> tell);

  Members& members();
  Traffic traffic() const;
  // Whether this process was forked off that of the agent, and cannot use it.
  bool is_forked() const { return birthplace_.is_elsewhere(); }
  // Fails what waits for a worker that has left, and lets go of it.
  void forget(int peer, const std::string& reason);

 private:
  void addGilWaitTime(std::chrono::microseconds wait) override;

  // What the threads of the agent use; it outlives the agent if they do.
  class Core;
  const Birthplace birthplace_;
  const std::shared_ptr<Core> core_;
};

}  // namespace rpc_backends
