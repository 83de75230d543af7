#include "front/shown_futures.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "rpc/failed_rrefs.h"
#include "rpc/own_rrefs.h"

namespace rpc_backends {

using torch::distributed::rpc::JitFuture;

namespace {

// Returns a future with the same value, and sets it after `before`, in the same callback.
template <typename Before>
FuturePtr completed_after(const FuturePtr& answer, Before before) {
  auto shown = answer->createInstance(answer->elementType());
  answer->addCallback([before = std::move(before), shown](JitFuture& done) {
    completing(shown, [&] {
      [[maybe_unused]] const auto kept = before(done);
      if (done.hasError()) {
        shown->setError(done.exception_ptr());
      } else {
        shown->markCompleted(done.constValue(), done.storages());
      }
    });
  });
  return shown;
}

}  // namespace

FuturePtr with_callbacks_in(const SpanContext& span, const FuturePtr& answer) {
  return completed_after(answer, [span](JitFuture&) { return InSpan(span); });
}

FuturePtr with_class_learnt(const RRefId& rref, const FuturePtr& answer) {
  return completed_after(answer, [rref](JitFuture& done) {
    learn_class(rref, done);
    return rref;
  });
}

FuturePtr with_rref_failed(const CreatedRRef& created, bool is_own, const FuturePtr& answer) {
  return completed_after(answer, [created, is_own](JitFuture& done) {
    if (done.hasError() && is_own) {
      fail_own_rref(created.id, done.exception_ptr());
    } else if (done.hasError()) {
      FailedRRefs::note(created.fork, done.exception_ptr());
    }
    return created;
  });
}

FuturePtr with_callee_named(const std::string& callee, const FuturePtr& answer) {
  auto shown = answer->createInstance(answer->elementType());
  answer->addCallback([callee, shown](JitFuture& done) {
    completing(shown, [&] {
      if (!done.hasError()) {
        shown->markCompleted(done.constValue(), done.storages());
        return;
      }
      const std::string text = done.tryRetrieveErrorMessage();
      if (text.substr(0, text.find('\n')).find("(this error originated at tensorpipe/") == std::string::npos) {
        shown->setError(done.exception_ptr());
        return;
      }
      shown->setError(std::make_exception_ptr(std::runtime_error(
          c10::str("RPC to '", callee, "' failed: the connection to '", callee,
                   "' is lost. Its process has ended or has left the group, or the network is down; look at its "
                   "output. TensorPipe: ",
                   text))));
    });
  });
  return shown;
}

}  // namespace rpc_backends
