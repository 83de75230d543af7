#include "rpc/failed_rrefs.h"

#include <torch/csrc/distributed/rpc/rref_context.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <atomic>
#include <exception>
#include <stdexcept>

#include "base/log.h"
#include "python/python_state.h"

namespace rpc_backends {

namespace rpc = torch::distributed::rpc;

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

void FailedRRefs::keep_first() {
  static std::atomic<bool> is_kept{false};  // of this process, like what torch keeps
  if (is_kept) {
    return;
  }
  is_kept = !error_in([] {
    auto rref = rpc::RRefContext::getInstance().createOwnerRRef(c10::AnyType::get());
    const auto future = c10::make_intrusive<rpc::JitFuture>(c10::AnyClassType::get());
    future->setError(std::make_exception_ptr(std::runtime_error("no rpc.remote() has failed")));
    // The first call makes torch keep the address. It throws the error.
    (void)error_in([&] { rref->handleError(rpc::RPCErrorType::UNKNOWN_ERROR, *future); });
    (void)rref.release();  // never deleted
  });
}

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
    // also holds while it sends a message, for which a transport in Python needs the GIL. So the GIL comes first here
    // too.
    const WithGil gil;
    const auto error = error_in([&] { rpc::RRefContext::getInstance().delPendingUser(each.id); });
    if (error && each.attempts < kMostAttempts) {
      add({each.id, each.attempts + 1});
    }
  }
}

}  // namespace rpc_backends
