#include "failed_rrefs.h"

#include <torch/csrc/distributed/rpc/rref_context.h>

#include "log.h"
#include "python_state.h"

namespace rpc_backends {

namespace {

class WithGil {
 public:
  WithGil() : state_(PyGILState_Ensure()) {}
  ~WithGil() { PyGILState_Release(state_); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  const PyGILState_STATE state_;
};

}  // namespace

void FailedRRefs::add(const Failed& failed) {
  const std::lock_guard<std::mutex> lock(mutex_);
  failed_.push_back(failed);
}

bool FailedRRefs::is_due() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !failed_.empty() && failed_.front().due <= std::chrono::steady_clock::now();
}

bool FailedRRefs::is_empty() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failed_.empty();
}

void FailedRRefs::release() {
  std::deque<Failed> failed;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    failed.swap(failed_);
  }
  for (const Failed& each : failed) {
    // torch throws if it does not know the RRef. Elsewhere it deletes RRefs with the GIL, and then takes a lock that it
    // also holds while it sends a message, for which a transport in Python needs the GIL. So the GIL comes first here too.
    const WithGil gil;
    const auto error =
        error_in([&] { torch::distributed::rpc::RRefContext::getInstance().delPendingUser(each.id); });
    if (error && each.attempts < kMostAttempts) {
      add({each.id, each.attempts + 1});
    }
  }
}

}  // namespace rpc_backends
