#include "intercept/interceptor_chain.h"

#include <algorithm>
#include <stdexcept>
#include <tuple>

#include "intercept/intercepted_call.h"

namespace rpc_backends {

namespace {

// Seconds that jobs on the scheduler's threads have to end.
constexpr double kEnding = 5.0;

}  // namespace

InterceptorChain::InterceptorChain(const std::string& worker, bool carries_context)
    : scheduler_(std::make_shared<ThreadedScheduler>()), agent_{worker, carries_context, scheduler_} {}

void InterceptorChain::add(std::shared_ptr<Interceptor> interceptor, const std::string& name, int order) {
  if (started_) {
    throw std::runtime_error("the interceptor '" + name + "' was added too late: the agent has already started");
  }
  if (name.empty() || name.size() > kMaxInterceptorName) {
    throw std::invalid_argument("the name of an interceptor must have 1 to " + std::to_string(kMaxInterceptorName) +
                                " bytes; '" + name + "' has " + std::to_string(name.size()));
  }
  const auto is_it = [&](const Installed& other) { return other.name == name; };
  if (std::any_of(installed_.begin(), installed_.end(), is_it)) {
    throw std::invalid_argument("an interceptor named '" + name +
                                "' is already in front of this agent; choose another "
                                "name");
  }
  installed_.push_back({order, name, std::move(interceptor)});
  std::sort(installed_.begin(), installed_.end(), [](const Installed& first, const Installed& other) {
    return std::tie(first.order, first.name) < std::tie(other.order, other.name);
  });
}

void InterceptorChain::start() {
  started_ = true;
  if (!installed_.empty()) {
    scheduler_->start();
  }
  for (const Installed& installed : installed_) {
    installed.interceptor->on_start(agent_);
  }
}

bool InterceptorChain::wants(Direction direction) const {
  return std::any_of(installed_.begin(), installed_.end(),
                     [&](const Installed& installed) { return installed.interceptor->wants(direction); });
}

std::unordered_map<std::string, std::string> InterceptorChain::metrics() const {
  std::unordered_map<std::string, std::string> metrics;
  for (const Installed& installed : installed_) {
    for (const auto& [name, value] : installed.interceptor->metrics()) {
      metrics[installed.name + "." + std::string(name)] = std::string(value);
    }
  }
  return metrics;
}

void InterceptorChain::keep(const std::shared_ptr<InterceptedCall>& call) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (stopped_) {
    lock.unlock();
    call->shut_down();  // nothing else would end it
    return;
  }
  if (call->is_over() || kept_.count(call.get()) != 0) {
    return;
  }
  Kept kept{call, {}};
  if (const auto seconds = call->seconds_left()) {
    kept.deadline = scheduler_->after(*seconds, [weak = std::weak_ptr<InterceptedCall>(call)] {
      if (const auto late = weak.lock()) {
        late->run_out();
      }
    });
  }
  kept_.emplace(call.get(), std::move(kept));
}

void InterceptorChain::let_go(const InterceptedCall& call) {
  Kept kept;  // destroyed after the lock is released
  std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = kept_.find(&call);
  if (entry == kept_.end()) {
    return;
  }
  kept = std::move(entry->second);
  kept_.erase(entry);
  scheduler_->cancel(kept.deadline);
  settled_.notify_all();
}

void InterceptorChain::moved() {
  --held_;
  if (settling_) {
    std::lock_guard<std::mutex> lock(mutex_);
    settled_.notify_all();
  }
}

void InterceptorChain::settle(double timeout) {
  for (const Installed& installed : installed_) {
    installed.interceptor->on_settle();
  }
  settling_ = true;
  std::unique_lock<std::mutex> lock(mutex_);
  const auto is_settled = [this] {
    // A dropped message without a timeout is never settled, so it does not count.
    return stopped_ || (held_ == 0 && std::none_of(kept_.begin(), kept_.end(), [](const auto& entry) {
                          return entry.second.call->seconds_left().has_value();
                        }));
  };
  if (timeout > 0) {
    settled_.wait_for(lock, std::chrono::duration<double>(timeout), is_settled);
  } else {
    settled_.wait(lock, is_settled);
  }
}

void InterceptorChain::stop() {
  if (stopped_.exchange(true)) {
    return;
  }
  for (const Installed& installed : installed_) {
    installed.interceptor->on_stop();
  }
  std::vector<std::shared_ptr<InterceptedCall>> left;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [call, kept] : kept_) {
      left.push_back(kept.call);
    }
    settled_.notify_all();
  }
  for (const auto& call : left) {
    call->shut_down();
  }
  left.clear();
  scheduler_->stop(kEnding);
}

}  // namespace rpc_backends
