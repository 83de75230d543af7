#include "record/failed_calls.h"

#include <chrono>
#include <stdexcept>
#include <utility>

#include "base/log.h"
#include "rpc/futures.h"

namespace rpc_backends {

FailedCalls::FuturePtr FailedCalls::watch(const std::shared_ptr<FailedCalls>& calls,
                                          const std::shared_ptr<CallLog>& log, CallLog::Place* place,
                                          FuturePtr answer) {
  auto shown = answer->createInstance(answer->elementType());
  answer->addCallback([calls, log, place, shown](torch::distributed::rpc::JitFuture& done) {
    if (!done.hasError()) {
      completing(shown, [&] {
        log->end(place, &done, CallLog::now_us());
        shown->markCompleted(done.constValue(), done.storages());
      });
      return;
    }
    Failed failed{log, place, FuturePtr::reclaim_copy(&done), shown};
    const bool is_explained = contained("while explaining an error", [&] {
      const auto state = state_of_error(done.tryRetrieveErrorMessage());
      if (state == RecordedCall::State::kTimedOut || state == RecordedCall::State::kLost) {
        calls->add(failed);
      } else {
        end(failed, {});
      }
    });
    if (!is_explained) {
      end(failed, {});
    }
  });
  return shown;
}

void FailedCalls::add(Failed call) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!stopped_) {
      calls_.push_back(std::move(call));
      changed_.notify_all();
      return;
    }
  }
  end(call, {});
}

void FailedCalls::end(const Failed& call, const std::string& text) {
  completing(call.shown, [&] {
    call.log->end(call.place, call.answer.get(), CallLog::now_us());
    if (text.empty()) {
      call.shown->setError(call.answer->exception_ptr());
    } else {
      const std::string error = call.answer->tryRetrieveErrorMessage() + "\n" + text;
      call.shown->setError(std::make_exception_ptr(std::runtime_error(error)));
    }
  });
}

std::optional<std::set<std::string>> FailedCalls::wait(double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return stopped_ || !calls_.empty(); });
  if (stopped_) {
    return std::nullopt;
  }
  std::set<std::string> peers;
  for (const Failed& call : calls_) {
    peers.insert(CallLog::callee_of(*call.place));
  }
  return peers;
}

void FailedCalls::explain(const std::string& text) {
  std::vector<Failed> calls;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    calls.swap(calls_);
  }
  for (const Failed& call : calls) {
    end(call, text);
  }
}

void FailedCalls::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  explain({});
}

}  // namespace rpc_backends
