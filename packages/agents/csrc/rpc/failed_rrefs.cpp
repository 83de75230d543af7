#include "rpc/failed_rrefs.h"

#include <torch/csrc/distributed/rpc/rref_context.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <atomic>
#include <mutex>
#include <stdexcept>

#include "base/log.h"
#include "python/python_state.h"

namespace rpc_backends {

namespace rpc = torch::distributed::rpc;

namespace {

// Of this process, like what torch keeps.
std::mutex first_mutex;
std::atomic<bool> has_first{false};

// Any error but a timeout.
std::exception_ptr unknown_error() {
  return std::make_exception_ptr(std::runtime_error("rpc.remote() has failed"));
}

// torch lets only subclasses mark an RRef as timed out.
struct MarkedRRef : rpc::RRef {
  static void mark(rpc::RRef& rref) { rref.*(&MarkedRRef::timedOut_) = true; }
};

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

void FailedRRefs::note(const c10::intrusive_ptr<rpc::RRef>& rref, const std::exception_ptr& error) {
  const auto future = c10::make_intrusive<rpc::JitFuture>(c10::AnyClassType::get());
  future->setError(error);
  const auto type = rpc::getRPCErrorType(*future);
  {
    const std::lock_guard<std::mutex> lock(first_mutex);
    if (!has_first) {
      (void)c10::intrusive_ptr<rpc::RRef>(rref).release();  // never deleted
      // The first call makes torch keep the address. It throws the error, unless that is a timeout.
      (void)error_in([&] { rref->handleError(type, *future); });
      has_first = true;
    }
  }
  if (type != rpc::RPCErrorType::UNKNOWN_ERROR) {
    MarkedRRef::mark(*rref);
  }
}

bool FailedRRefs::note(const ForkId& id, const std::exception_ptr& error) {
  // torch throws if it does not know the RRef, or not yet.
  (void)error_in([&] { note(rpc::RRefContext::getInstance().getPendingUser(id), error); });
  return has_first;
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
    const auto error = error_in([&] {
      if (each.may_be_first) {
        note(rpc::RRefContext::getInstance().getPendingUser(each.id), unknown_error());
      }
      rpc::RRefContext::getInstance().delPendingUser(each.id);
    });
    if (error && each.attempts < kMostAttempts) {
      add({each.id, each.may_be_first, each.attempts + 1});
    }
  }
}

}  // namespace rpc_backends
