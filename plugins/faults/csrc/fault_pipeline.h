// The way of a request and of its answer through the faults that they meet, as an interceptor.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fault_log.h"
#include "fault_rules.h"
#include "rpc_backends_agents/interceptor.h"

namespace rpc_backends {

class FaultCall;
using FaultCallPtr = std::shared_ptr<FaultCall>;

class FaultPipeline : public Interceptor, public std::enable_shared_from_this<FaultPipeline> {
 public:
  explicit FaultPipeline(const std::string& worker) : rules(worker), worker_(worker) {}

  void on_start(const AgentInfo& agent) override;
  bool wants(Direction direction) const noexcept override {
    return direction == Direction::kOutgoing && !rules.idle();
  }
  void on_request(RequestPtr request) override;
  // From here on no message meets a fault, and what waits for others goes: few will come.
  void on_settle() override;
  void on_stop() override;
  std::map<std::string, std::string> metrics() const override;

  FaultRules rules;
  FaultLog log;

 private:
  friend class FaultCall;
  friend class OvertakingCall;

  // A request that waits for others, sent after it, to be answered.
  struct Waiting {
    FaultCallPtr call;
    RequestPtr request;
    uint64_t others;
    Scheduler::Key bound;
  };

  void hold(const FaultCallPtr& call, const RequestPtr& request);
  void transmit(const FaultCall& call, const RequestPtr& request);
  // A call to `peer` is over; `id` tells who of those that wait was sent before it.
  void ended(int peer, uint64_t id);
  void release(int peer, const RequestPtr& request);
  void send_elsewhere(const std::vector<Waiting>& free);
  void later(double seconds, std::function<void()> job);
  // Says what a replay has to say, at once: nobody may live to hear it at shutdown.
  void tell_news();
  void look_at_replay();

  const std::string worker_;
  std::shared_ptr<Scheduler> scheduler_;
  std::mutex mutex_;
  bool stopped_ = false;
  std::map<int, std::list<Waiting>> waiting_;  // by the peer that they are for
  std::atomic<size_t> waiting_now_{0};
  std::atomic<uint64_t> held_{0};  // requests and answers
  std::atomic<uint64_t> next_{0};
};

}  // namespace rpc_backends
