// The way of a request and of its answer through the faults that they meet, in front of any agent.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "calls.h"
#include "fault_log.h"
#include "fault_rules.h"
#include "scheduler.h"

namespace rpc_backends {

struct FaultCall;
using FaultCallPtr = std::shared_ptr<FaultCall>;

// What the threads of a fault-injecting agent use; it outlives the agent if they do.
class FaultWay : public std::enable_shared_from_this<FaultWay> {
 public:
  using RpcAgent = torch::distributed::rpc::RpcAgent;
  using WorkerInfo = torch::distributed::rpc::WorkerInfo;
  using Message = torch::distributed::rpc::Message;
  using JitFuture = torch::distributed::rpc::JitFuture;
  using DeviceMap = torch::distributed::rpc::DeviceMap;
  using worker_id_t = torch::distributed::rpc::worker_id_t;

  FaultWay(std::shared_ptr<RpcAgent> inner, const std::string& worker)
      : rules(worker), inner_(std::move(inner)), scheduler_(std::make_shared<Scheduler>()) {}

  FuturePtr send(const WorkerInfo& to, c10::intrusive_ptr<Message> message, float timeout_seconds,
                 std::chrono::milliseconds timeout, const DeviceMap& device_map);
  // Returns when nothing is held that will still move.
  void settle();
  void stop();
  uint64_t held_now() const { return moving_; }

  FaultRules rules;
  FaultLog log;

 private:
  // A request that waits for others to pass.
  struct Waiting {
    FaultCallPtr call;
    uint64_t others;
    Scheduler::Key bound;
  };

  FuturePtr send_watched(const WorkerInfo& to, c10::intrusive_ptr<Message> message, float timeout_seconds,
                         const DeviceMap& device_map, uint64_t id);
  void begin(const FaultCallPtr& call);
  void hold(const FaultCallPtr& call);
  void transmit(const FaultCallPtr& call);
  void passed(worker_id_t to);
  void release(worker_id_t to, const FaultCallPtr& call);
  void answered(const FaultCallPtr& call, JitFuture& answer);
  void complete(const FaultCallPtr& call, const FuturePtr& answer, const Faults& answer_faults);
  void fail(const FaultCallPtr& call, const std::string& error, const char* outcome, const Faults& answer_faults = {});
  bool take(const FaultCallPtr& call);
  void later(double seconds, const FaultCallPtr& call, std::function<void()> job);
  void moved();

  const std::shared_ptr<RpcAgent> inner_;
  const std::shared_ptr<Scheduler> scheduler_;
  std::mutex mutex_;
  std::condition_variable settled_;
  std::unordered_map<uint64_t, FaultCallPtr> open_;
  std::map<worker_id_t, std::list<Waiting>> waiting_;
  std::atomic<size_t> waiting_now_{0};
  std::atomic<uint64_t> moving_{0};  // requests and answers that are held, and will go on
  std::atomic<uint64_t> next_{0};
  std::atomic<bool> stopped_{false};
};

}  // namespace rpc_backends
