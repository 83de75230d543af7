// The interceptors in front of one agent, and the calls that they hold or have dropped.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "rpc_backends_agents/interceptor.h"
#include "scheduler.h"

namespace rpc_backends {

class InterceptedCall;

// Shared by all that is under way; it knows no agent.
class InterceptorChain {
 public:
  struct Installed {
    int order = 0;
    std::string name;
    std::shared_ptr<Interceptor> interceptor;
  };

  InterceptorChain(const std::string& worker, bool carries_context);

  // Before start() only. Throws std::invalid_argument if the name is another's, or none.
  void add(std::shared_ptr<Interceptor> interceptor, const std::string& name, int order);
  void start();
  // Returns when nothing is held any more, or after `timeout` seconds (0: no limit); what was dropped is waited for
  // until its time runs out.
  void settle(double timeout);
  // Ends what is held or was dropped.
  void stop();
  bool is_stopped() const { return stopped_; }

  // The interceptors, the nearest to the program first.
  const std::vector<Installed>& installed() const { return installed_; }
  bool wants(Direction direction) const;
  const AgentInfo& agent() const { return agent_; }
  std::unordered_map<std::string, std::string> metrics() const;

  // Keeps a call, and ends it when its time is up, or by stop(): at once, if that was called already.
  void keep(const std::shared_ptr<InterceptedCall>& call);
  void let_go(const InterceptedCall& call);
  // Counts the requests and answers that interceptors hold.
  void held() { ++held_; }
  void moved();

 private:
  struct Kept {
    std::shared_ptr<InterceptedCall> call;
    Scheduler::Key deadline;
  };

  std::vector<Installed> installed_;
  const std::shared_ptr<ThreadedScheduler> scheduler_;
  const AgentInfo agent_;
  bool started_ = false;
  std::atomic<bool> stopped_{false};
  std::atomic<uint64_t> held_{0};
  std::atomic<bool> settling_{false};
  std::mutex mutex_;
  std::condition_variable settled_;
  std::unordered_map<const InterceptedCall*, Kept> kept_;
};

}  // namespace rpc_backends
