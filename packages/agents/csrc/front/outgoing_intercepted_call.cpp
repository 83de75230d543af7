#include "front/outgoing_intercepted_call.h"

#include <c10/core/StreamGuard.h>

#include <thread>
#include <utility>
#include <vector>

#include "intercept/intercepted_call.h"
#include "rpc/futures.h"
#include "wire/devices.h"

namespace rpc_backends {

namespace rpc = torch::distributed::rpc;

TransportAgent::SentCall send_to_inner(rpc::RpcAgent& inner, TransportAgent* transport_agent, const rpc::WorkerInfo& to,
                                       MessagePtr message, float timeout, const rpc::DeviceMap& device_map,
                                       const Contexts& contexts) {
  if (transport_agent != nullptr) {
    return transport_agent->send_call(to, std::move(message), timeout, device_map, contexts);
  }
  return {inner.send(to, std::move(message), timeout, device_map), 0};
}

namespace {

// A request that this worker sends, from send() to its answer.
class OutgoingInterceptedCall final : public InterceptedCall {
 public:
  OutgoingInterceptedCall(std::shared_ptr<InterceptorChain> chain, std::shared_ptr<rpc::RpcAgent> inner,
                          std::shared_ptr<TransportAgent> transport_agent, const rpc::WorkerInfo& to,
                          float inner_timeout, std::chrono::milliseconds timeout, const rpc::DeviceMap& device_map,
                          const Contexts& own)
      : InterceptedCall(std::move(chain), Direction::kOutgoing, to.id_, timeout, {}),
        inner_(std::move(inner)),
        transport_agent_(std::move(transport_agent)),
        to_(to),
        inner_timeout_(inner_timeout),
        device_map_(device_map),
        own_(own),
        future_(c10::make_intrusive<JitFuture>(at::AnyClassType::get(), inner_->getDevices())) {}

  TransportAgent::SentCall send(MessagePtr message) {
    sending_ = true;
    streams_ = current_streams(message->tensors());
    begin(std::move(message));
    sending_ = false;
    if (thrown_ && future_->completed() && future_->exception_ptr() == thrown_->exception_ptr()) {
      std::rethrow_exception(thrown_->exception_ptr());  // on the same thread as the inner agent
    }
    return {unobserved_ ? unobserved_ : future_, number_};
  }

 protected:
  void transmit(MessagePtr message, const Contexts& contexts, const PassingRequestPtr& last) override {
    const bool in_send = std::this_thread::get_id() == sender_ && sending_;
    FuturePtr answer;
    const c10::MultiStreamGuard guard(streams_);  // an interceptor may have changed the thread
    try {
      Contexts all = contexts;
      all.insert(all.end(), own_.begin(), own_.end());
      auto sent =
          send_to_inner(*inner_, transport_agent_.get(), to_, std::move(message), inner_timeout_, device_map_, all);
      answer = std::move(sent.future);
      if (in_send) {
        number_ = sent.number;
      }
    } catch (const abi::__forced_unwind&) {
      throw;
    } catch (...) {
      const FuturePtr error = failed(std::current_exception());
      if (in_send) {
        thrown_ = error;
      }
      come_back(last, error);
      return;
    }
    if (in_send && !repeated_ && !wants_answers(last.get())) {
      observe_end(*answer);
      unobserved_ = std::move(answer);
      return;
    }
    auto self = std::static_pointer_cast<OutgoingInterceptedCall>(shared_from_this());
    answer->addCallback([self, last](JitFuture& done) { self->come_back(last, FuturePtr::reclaim_copy(&done)); });
  }

  void finish(JitFuture* answer) override {
    completing(future_, [&] {
      if (answer->hasError()) {
        future_->setError(answer->exception_ptr());
      } else {
        future_->markCompleted(answer->constValue(), answer->storages());
      }
    });
  }

  const std::string& peer() const override { return to_.name_; }

 private:
  const std::shared_ptr<rpc::RpcAgent> inner_;
  const std::shared_ptr<TransportAgent> transport_agent_;
  const rpc::WorkerInfo to_;
  const float inner_timeout_;
  const rpc::DeviceMap device_map_;
  const Contexts own_;  // beside those of the interceptors
  const FuturePtr future_;
  std::vector<c10::Stream> streams_;  // of the sending thread, for the devices of the request
  // Used by the sending thread while it is in send():
  const std::thread::id sender_ = std::this_thread::get_id();
  bool sending_ = false;
  uint64_t number_ = 0;   // that a TransportAgent has given the call
  FuturePtr unobserved_;  // the inner agent's future, if no interceptor wants the answer
  FuturePtr thrown_;      // the exception that the inner agent has thrown
};

}  // namespace

TransportAgent::SentCall send_through(std::shared_ptr<InterceptorChain> chain, std::shared_ptr<rpc::RpcAgent> inner,
                                      std::shared_ptr<TransportAgent> transport_agent, const rpc::WorkerInfo& to,
                                      MessagePtr message, float inner_timeout, std::chrono::milliseconds timeout,
                                      const rpc::DeviceMap& device_map, const Contexts& contexts) {
  return std::make_shared<OutgoingInterceptedCall>(std::move(chain), std::move(inner), std::move(transport_agent), to,
                                                   inner_timeout, timeout, device_map, contexts)
      ->send(std::move(message));
}

}  // namespace rpc_backends
