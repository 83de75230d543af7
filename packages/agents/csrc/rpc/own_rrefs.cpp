#include "rpc/own_rrefs.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/distributed/rpc/py_rref.h>
#include <torch/csrc/distributed/rpc/rref_context.h>
#include <torch/csrc/distributed/rpc/rref_proto.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#include "base/log.h"
#include "rpc/failed_rrefs.h"
#include "rpc/futures.h"

namespace py = pybind11;

namespace rpc_backends {

namespace rpc = torch::distributed::rpc;

namespace {

// The longest timeout; it keeps the clock from overflowing.
constexpr float kLongestToHere = 3600.0F * 24 * 365;

// Waits until a future has a value or an error; returns false after `seconds`.
bool wait_for(rpc::JitFuture& future, float seconds) {
  struct Completion {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_there = false;
  };
  const auto completion = std::make_shared<Completion>();
  future.addCallback([completion](rpc::JitFuture& /*done*/) {
    const std::lock_guard<std::mutex> lock(completion->mutex);
    completion->is_there = true;
    completion->changed.notify_all();
  });
  std::unique_lock<std::mutex> lock(completion->mutex);
  return completion->changed.wait_for(lock, std::chrono::duration<float>(std::min(seconds, kLongestToHere)),
                                      [&] { return completion->is_there; });
}

// Waits with a time limit for the value of an RRef of this worker.
void wait_for_own(const rpc::PyRRef& rref, float timeout) {
  if (timeout > 0 && rref.isOwner()) {
    const py::gil_scoped_release without_gil;
    const auto owned = rpc::fromRRefInterface(rref.toIValue().toRRef());
    // torch's to_here() throws if the creation has timed out.
    if (owned && !owned->getTimedOut() && !owned->hasValue() && !wait_for(*owned->getFuture(), timeout)) {
      throw std::runtime_error(
          timeout_text(std::chrono::milliseconds(static_cast<int64_t>(timeout * rpc::kSecToMsConversion))));
    }
  }
}

}  // namespace

void fail_own_rref(const rpc::RRefId& id, const std::exception_ptr& error) {
  // torch throws if it does not know the RRef any more; then no caller waits for it.
  (void)error_in([&] {
    const auto known = rpc::RRefContext::getInstance().getOwnerRRef(id, /*forceCreated=*/true);
    const auto rref = rpc::fromRRefInterface(known->constValue().toRRef());
    FailedRRefs::note(rref, error);
    rref->setError(error);
  });
}

c10::intrusive_ptr<rpc::Message> create_failed_rref(const rpc::RRefId& id, const rpc::ForkId& fork, bool is_python,
                                                    const std::exception_ptr& error) {
  auto& context = rpc::RRefContext::getInstance();
  const c10::TypePtr type = is_python ? c10::TypePtr(c10::PyObjectType::get()) : c10::TypePtr(c10::AnyType::get());
  const auto rref = context.getOrCreateOwnerRRef(id, type);
  context.addForkOfOwnerIfNotPresent(id, fork);
  rref->setError(error);
  return rpc::RemoteRet(id, fork).toMessage();
}

void limit_own_to_here() {
  const py::object type = py::module_::import("torch.distributed.rpc").attr("PyRRef");
  const auto words = py::cast<std::string>(py::str(type.attr("to_here").attr("__doc__")));
  py::options options;
  options.disable_function_signatures();  // the text of torch begins with the signature
  const py::object before = type.attr("to_here");
  const auto to_here = [before](const py::object& rref, float timeout) {
    wait_for_own(rref.cast<const rpc::PyRRef&>(), timeout);
    return before(rref, timeout);
  };
  type.attr("to_here") = py::cpp_function(to_here, py::name("to_here"), py::is_method(type),
                                          py::arg("timeout") = rpc::kUnsetRpcTimeout, py::doc(words.c_str()));
}

}  // namespace rpc_backends
