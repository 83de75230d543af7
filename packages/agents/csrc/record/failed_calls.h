// Calls that have timed out or were lost. They end for the program only when explain() has added to their errors.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "record/call_log.h"

namespace rpc_backends {

class FailedCalls {
 public:
  using FuturePtr = c10::intrusive_ptr<torch::distributed::rpc::JitFuture>;

  // Returns the future that the program gets in place of `answer`. A call that times out or is lost stays in flight in
  // the log until it is explained.
  static FuturePtr watch(const std::shared_ptr<FailedCalls>& calls, const std::shared_ptr<CallLog>& log,
                         CallLog::Place* place, FuturePtr answer);

  // Waits until a call has failed, but at most `seconds`; returns the workers called by all that have, each once.
  // Returns nothing after stop().
  std::optional<std::set<std::string>> wait(double seconds);
  // Ends the calls that have failed so far; `text` is added to their errors.
  void explain(const std::string& text);
  // From now on, calls end at once, and nothing is added to their errors.
  void stop();

 private:
  struct Failed {
    std::shared_ptr<CallLog> log;
    CallLog::Place* place = nullptr;
    FuturePtr answer;
    FuturePtr shown;
  };

  static void end(const Failed& call, const std::string& text);
  void add(Failed call);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Failed> calls_;
  bool stopped_ = false;
};

}  // namespace rpc_backends
