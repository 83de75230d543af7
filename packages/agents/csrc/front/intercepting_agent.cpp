#include "front/intercepting_agent.h"

#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/rpc_messages/propagate_gradients_req.h>

#include <thread>

#include "agent/agent.h"
#include "base/log.h"
#include "front/tensorpipe_requests.h"
#include "inspect/request_inspector.h"
#include "intercept/intercepted_call.h"
#include "record/recorder.h"
#include "record/telemetry.h"
#include "rpc/failed_rrefs.h"
#include "rpc/futures.h"
#include "rpc/message_kinds.h"
#include "rpc/own_rrefs.h"
#include "rpc_backends_agents/python.h"
#include "wire/devices.h"

namespace rpc_backends {

namespace rpc = torch::distributed::rpc;

namespace {

// Torch's base class needs a callback. It is never called: requests arrive at the inner agent, which has its own.
class NoCallback final : public rpc::RequestCallback {
 protected:
  c10::intrusive_ptr<rpc::JitFuture> processMessage(rpc::Message& /*request*/,
                                                    std::vector<c10::Stream> /*streams*/) const override {
    TORCH_CHECK(false, "requests arrive at the inner agent");
  }
};

// Sends to the inner agent. Only a TransportAgent, which `transport_agent` then is, carries contexts; the number of the
// call is 0 for any other agent.
TransportAgent::SentCall send_to_inner(rpc::RpcAgent& inner, TransportAgent* transport_agent, const rpc::WorkerInfo& to,
                                       MessagePtr message, float timeout, const rpc::DeviceMap& device_map,
                                       const Contexts& contexts) {
  if (transport_agent != nullptr) {
    return transport_agent->send_call(to, std::move(message), timeout, device_map, contexts);
  }
  return {inner.send(to, std::move(message), timeout, device_map), 0};
}

// A request that this worker sends, from send() to its answer.
class OutgoingCall final : public InterceptedCall {
 public:
  OutgoingCall(std::shared_ptr<InterceptorChain> chain, std::shared_ptr<rpc::RpcAgent> inner,
               std::shared_ptr<TransportAgent> transport_agent, const rpc::WorkerInfo& to, float inner_timeout,
               std::chrono::milliseconds timeout, const rpc::DeviceMap& device_map, const Contexts& own)
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
    auto self = std::static_pointer_cast<OutgoingCall>(shared_from_this());
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

// What a request carries in its frame. It says also that a trace is not sampled, so that the callee starts no new one.
const Contexts& contexts_of(const SpanContext& span, Contexts& made) {
  static const Contexts none;
  static const Contexts dropped{{std::string(kSpanContextName), write_span({})}};
  switch (span.sampling) {
    case SpanContext::Sampling::kNone:
      return none;
    case SpanContext::Sampling::kDropped:
      return dropped;
    default:
      made.push_back({std::string(kSpanContextName), write_span(span)});
      return made;
  }
}

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

// Returns a future whose callbacks run in a span, like the code that has made the call.
FuturePtr with_callbacks_in(const SpanContext& span, const FuturePtr& answer) {
  return completed_after(answer, [span](JitFuture&) { return InSpan(span); });
}

// Returns a future that has a value only when the class in it is known: the program's next call needs the class.
FuturePtr with_class_learnt(const RRefId& rref, const FuturePtr& answer) {
  return completed_after(answer, [rref](JitFuture& done) {
    learn_class(rref, done);
    return rref;
  });
}

// Returns a future that gets an error only when the RRef that the call creates has the error.
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

// Returns a future whose error names the worker called, if the error is TensorPipe's own, such as "eof".
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

}  // namespace

InterceptingAgent::InterceptingAgent(std::shared_ptr<RpcAgent> inner)
    : RpcAgent(static_cast<const RpcAgent&>(*inner).getWorkerInfo(), std::make_unique<NoCallback>(),
               inner->getRpcTimeout()),
      inner_(std::move(inner)),
      transport_agent_(std::dynamic_pointer_cast<TransportAgent>(inner_)),
      interceptors_(std::make_shared<InterceptorChain>(workerInfo_.name_, transport_agent_ != nullptr)) {
  if (transport_agent_) {
    transport_agent_->set_interceptors(interceptors_);
  } else {
    settle_early_deletions(*inner_);
  }
}

InterceptingAgent::~InterceptingAgent() {
  if (!rpcAgentRunning_) {
    return;
  }
  const WithoutGil without;
  shutdown();
  inner_->shutdown();
}

c10::intrusive_ptr<rpc::JitFuture> InterceptingAgent::send(const WorkerInfo& to, c10::intrusive_ptr<Message> message,
                                                           float rpc_timeout_seconds, const DeviceMap& device_map) {
  const auto default_timeout = rpcTimeout_.load();
  if (inner_->getRpcTimeout() != default_timeout) {
    inner_->setRpcTimeout(default_timeout);  // Python sets the timeout of the installed agent only
  }
  rpc_timeout_seconds = representable(rpc_timeout_seconds);
  auto timeout = default_timeout;
  if (rpc_timeout_seconds != rpc::kUnsetRpcTimeout) {
    timeout = std::chrono::milliseconds(static_cast<int64_t>(rpc_timeout_seconds * rpc::kSecToMsConversion));
  }
  const auto asked = watch_classes(*message);
  const auto created = created_rref(inspect(*message));
  auto answer = record_and_send(to, std::move(message), rpc_timeout_seconds, timeout, device_map);
  if (!transport_agent_) {
    answer = with_callee_named(to.name_, answer);
  }
  if (created) {
    answer = with_rref_failed(*created, to.id_ == workerInfo_.id_, answer);
  }
  return asked ? with_class_learnt(*asked, answer) : answer;
}

c10::intrusive_ptr<rpc::JitFuture> InterceptingAgent::record_and_send(const WorkerInfo& to,
                                                                      c10::intrusive_ptr<Message> message,
                                                                      float rpc_timeout_seconds,
                                                                      std::chrono::milliseconds timeout,
                                                                      const DeviceMap& device_map) {
  if (!call_log_) {
    return pass_on(to, std::move(message), rpc_timeout_seconds, timeout, device_map, {}).future;
  }
  const SpanContext parent = telemetry_ ? span_of(*message) : SpanContext();
  CallLog::Place* const place = call_log_->begin_outgoing(to, *message, timeout, parent);
  if (place == nullptr) {
    return pass_on(to, std::move(message), rpc_timeout_seconds, timeout, device_map, {}).future;
  }
  Contexts made;
  const Contexts& contexts = contexts_of(transport_agent_ ? place->span.context : SpanContext(), made);
  if (!transport_agent_ && place->span.context.sampling == SpanContext::Sampling::kSampled) {
    append_span(*message, place->span.context, workerInfo_.id_);
  }
  // A TransportAgent can record the end of the call by itself, which takes less time than a callback.
  const bool agent_records = transport_agent_ && !failed_calls_ && !interceptors_->wants(Direction::kOutgoing);
  last_peer = has_result(message->type()) ? to.id_ : last_peer;
  TransportAgent::SentCall sent;
  try {
    sent = agent_records
               ? transport_agent_->send_call(to, std::move(message), rpc_timeout_seconds, device_map, contexts, place)
               : pass_on(to, std::move(message), rpc_timeout_seconds, timeout, device_map, contexts);
  } catch (const std::exception& error) {
    call_log_->failed(place, error.what());
    throw;
  } catch (...) {
    call_log_->failed(place, "an exception without a text");
    throw;
  }
  FuturePtr answer = std::move(sent.future);
  if (!agent_records) {
    if (sent.number != 0) {
      CallLog::sent(place, sent.number);
    }
    if (failed_calls_) {
      answer = FailedCalls::watch(failed_calls_, call_log_, place, std::move(answer));
    } else {
      CallLog::end_with(call_log_, place, *answer);
    }
  }
  return parent.sampling == SpanContext::Sampling::kNone ? answer : with_callbacks_in(parent, answer);
}

TransportAgent::SentCall InterceptingAgent::pass_on(const WorkerInfo& to, c10::intrusive_ptr<Message> message,
                                                    float rpc_timeout_seconds, std::chrono::milliseconds timeout,
                                                    const DeviceMap& device_map, const Contexts& contexts) {
  if (!interceptors_->wants(Direction::kOutgoing)) {
    return send_to_inner(*inner_, transport_agent_.get(), to, std::move(message), rpc_timeout_seconds, device_map,
                         contexts);
  }
  return std::make_shared<OutgoingCall>(interceptors_, inner_, transport_agent_, to, rpc_timeout_seconds, timeout,
                                        device_map, contexts)
      ->send(std::move(message));
}

void InterceptingAgent::record(std::shared_ptr<Recorder> recorder) {
  recorder_ = std::move(recorder);
  failed_calls_ = recorder_->explained_calls();
  set_call_log(recorder_->log());
}

void InterceptingAgent::report(std::shared_ptr<Telemetry> telemetry) {
  telemetry_ = std::move(telemetry);
  set_call_log(call_log_ ? call_log_ : std::make_shared<CallLog>(0));
}

void InterceptingAgent::set_call_log(std::shared_ptr<CallLog> log) {
  call_log_ = std::move(log);
  if (telemetry_) {
    call_log_->report_to(telemetry_);
  }
  if (transport_agent_) {
    transport_agent_->set_call_log(call_log_);
  } else if (telemetry_) {
    watch_requests(*inner_, call_log_);
  }
}

SpanContext InterceptingAgent::span_of(const Message& message) const {
  namespace autograd = torch::distributed::autograd;
  const SpanContext found = current_span();
  if (found.sampling != SpanContext::Sampling::kNone) {
    if (message.type() == rpc::MessageType::FORWARD_AUTOGRAD_REQ) {
      telemetry_->note_forward(autograd::DistAutogradContainer::currentContextId(), found);
    }
  } else if (message.type() == rpc::MessageType::BACKWARD_AUTOGRAD_REQ && telemetry_->has_forward()) {
    // The engine sends it on a thread of its own, which knows nothing of the program's span.
    SpanContext forward;
    contained("while reading a request of autograd", [&] {
      const auto request = autograd::PropagateGradientsReq::fromMessage(message);
      forward = telemetry_->forward(request->getAutogradMetadata().autogradContextId);
    });
    return forward;
  }
  return found;
}

std::string InterceptingAgent::answering_worker() const {
  if (transport_agent_) {
    return transport_agent_->answering_worker();
  }
  std::string name;
  if (call_log_ && last_peer >= 0) {  // the log notes whose answer it is
    (void)error_in([&] { name = inner_->getWorkerInfo(static_cast<rpc::worker_id_t>(last_peer)).name_; });
  }
  return name.empty() ? name : "'" + name + "'";
}

const rpc::WorkerInfo& InterceptingAgent::getWorkerInfo(const std::string& name) const {
  return inner_->getWorkerInfo(name);
}

const rpc::WorkerInfo& InterceptingAgent::getWorkerInfo(rpc::worker_id_t id) const {
  return inner_->getWorkerInfo(id);
}

std::vector<rpc::WorkerInfo> InterceptingAgent::getWorkerInfos() const {
  return inner_->getWorkerInfos();
}

void InterceptingAgent::join(bool shutdown, float timeout) {
  interceptors_->settle(timeout);
  inner_->join(shutdown, timeout);
}

void InterceptingAgent::sync() {
  inner_->sync();
}

void InterceptingAgent::startImpl() {
  if (recorder_) {
    recorder_->start(workerInfo_.name_);
  }
  interceptors_->start();
  inner_->setTypeResolver(getTypeResolver());
  inner_->start();
}

void InterceptingAgent::shutdownImpl() {
  if (recorder_) {
    recorder_->stop();
  }
  interceptors_->stop();
}

std::unordered_map<std::string, std::string> InterceptingAgent::getMetrics() {
  if (inner_->isGILProfilingEnabled() != isGILProfilingEnabled()) {
    inner_->enableGILProfiling(isGILProfilingEnabled());
  }
  auto found = interceptors_->metrics();
  if (recorder_) {
    found.merge(recorder_->metrics());
  }
  if (isGILProfilingEnabled()) {
    const uint64_t waits = gil_waits_;
    found["agent.gil_average_wait_time_us"] = std::to_string(waits ? gil_wait_us_ / waits : 0);
  }
  found.merge(inner_->getMetrics());
  return found;
}

std::unordered_map<std::string, std::string> InterceptingAgent::getDebugInfo() {
  auto found = getMetrics();
  found.merge(inner_->getDebugInfo());
  return found;
}

rpc::DeviceMap InterceptingAgent::getDeviceMap(const WorkerInfo& to) const {
  return inner_->getDeviceMap(to);
}

const std::vector<c10::Device>& InterceptingAgent::getDevices() const {
  return inner_->getDevices();
}

void InterceptingAgent::addGilWaitTime(std::chrono::microseconds wait) {
  ++gil_waits_;
  gil_wait_us_ += static_cast<uint64_t>(wait.count());
}

}  // namespace rpc_backends
