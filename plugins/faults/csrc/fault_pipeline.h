// The interceptor that applies faults to requests and to their answers.
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
  bool wants(Direction direction) const noexcept override { return direction == Direction::kOutgoing && !rules.idle(); }
  void on_request(RequestPtr request) override;
  // From now on no fault is applied. Requests that wait for later ones are sent, because few more will come.
  void on_settle() override;
  void on_stop() override;
  Metrics metrics() const override;

  FaultRules rules;
  FaultLog log;

 private:
  friend class FaultCall;
  friend class OvertakingCall;

  // A request that is held until `others` requests sent after it are answered, or until the timer `bound` expires.
  struct Waiting {
    FaultCallPtr call;
    RequestPtr request;
    uint64_t others;
    Scheduler::Key bound;
  };

  // Faults of the whole process, which begin when it sends a message.
  void apply_to_process(const Fault& fault);
  void hold(const FaultCallPtr& call, const RequestPtr& request);
  void transmit(const FaultCall& call, const RequestPtr& request);
  // Called when the call `id` to `peer` has ended; it counts for the held requests with lower ids.
  void ended(int peer, uint64_t id);
  void release(int peer, const RequestPtr& request);
  void send_elsewhere(const std::vector<Waiting>& free);
  void later(double seconds, std::function<void()> job);
  // Reports immediately that a replay has diverged or stalled; the process may never reach shutdown.
  void report_replay();
  void check_replay();

  const std::string worker_;
  std::shared_ptr<Scheduler> scheduler_;
  std::mutex mutex_;
  bool stopped_ = false;
  std::map<int, std::list<Waiting>> waiting_;  // by receiver
  std::atomic<size_t> waiting_now_{0};
  std::atomic<uint64_t> held_{0};  // requests and answers
  std::atomic<uint64_t> next_{0};
};

}  // namespace rpc_backends
