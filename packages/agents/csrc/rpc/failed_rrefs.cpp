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

// Of this process, like what torch keeps.
std::atomic<bool> has_first{false};

// Any error but a timeout.
constexpr const char* kUnknownError = "rpc.remote() has failed";

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

void FailedRRefs::keep(const ForkId& id, const std::string& error) {
  rpc::RRef* const rref = rpc::RRefContext::getInstance().getPendingUser(id).release();  // never deleted
  const auto future = c10::make_intrusive<rpc::JitFuture>(c10::AnyClassType::get());
  future->setError(std::make_exception_ptr(std::runtime_error(error)));
  // The first call makes torch keep the address. It throws the error, unless that is a timeout.
  (void)error_in([&] { rref->handleError(rpc::getRPCErrorType(*future), *future); });
  has_first = true;
}

bool FailedRRefs::keep_first(const ForkId& id, const std::string& error) {
  // torch throws if it does not know the RRef, or not yet.
  return has_first || !error_in([&] { keep(id, error); });
}

void FailedRRefs::keep_first_own() {
  if (has_first) {
    return;
  }
  has_first = !error_in([] {
    auto rref = rpc::RRefContext::getInstance().createOwnerRRef(c10::AnyType::get());
    const auto future = c10::make_intrusive<rpc::JitFuture>(c10::AnyClassType::get());
    future->setError(std::make_exception_ptr(std::runtime_error(kUnknownError)));
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
    const auto error = error_in([&] {
      if (each.may_be_first) {
        keep(each.id, kUnknownError);
      }
      rpc::RRefContext::getInstance().delPendingUser(each.id);
    });
    if (error && each.attempts < kMostAttempts) {
      add({each.id, each.may_be_first, each.attempts + 1});
    }
  }
}

}  // namespace rpc_backends
