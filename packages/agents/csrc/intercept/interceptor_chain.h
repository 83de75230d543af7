// The interceptors in front of one agent, and the calls whose messages they hold or have dropped.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/scheduler.h"
#include "rpc_backends_agents/interceptor.h"

namespace rpc_backends {

class InterceptedCall;

// Shared by all active calls; it has no reference to an agent.
class InterceptorChain {
 public:
  struct Installed {
    int order = 0;
    std::string name;
    std::shared_ptr<Interceptor> interceptor;
  };

  InterceptorChain(const std::string& worker, bool carries_context);

  // Only before start(). Throws std::invalid_argument if the name is taken or not valid.
  void add(std::shared_ptr<Interceptor> interceptor, const std::string& name, int order);
  void start();
  // Waits until no message is held and every call with a dropped message has timed out, but at most `timeout` seconds
  // (0 means no limit).
  void settle(double timeout);
  // Ends the calls whose messages are held or were dropped.
  void stop();
  bool is_stopped() const { return stopped_; }

  // The interceptors, starting with the one nearest to the program.
  const std::vector<Installed>& installed() const { return installed_; }
  bool wants(Direction direction) const;
  const AgentInfo& agent() const { return agent_; }
  std::unordered_map<std::string, std::string> metrics() const;

  // Keeps a call and ends it at its timeout or in stop(); ends it immediately if stop() was already called.
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
