#include "front/intercepting_agent.h"

#include "agent/agent.h"
#include "base/log.h"
#include "front/outgoing_intercepted_call.h"
#include "front/shown_futures.h"
#include "front/tensorpipe_requests.h"
#include "inspect/request_inspector.h"
#include "record/recorder.h"
#include "record/telemetry.h"
#include "rpc/futures.h"
#include "rpc/message_kinds.h"
#include "rpc_backends_agents/python.h"

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
  const SpanContext parent = telemetry_ ? forward_spans_.span_of(*message) : SpanContext();
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
  return send_through(interceptors_, inner_, transport_agent_, to, std::move(message), rpc_timeout_seconds, timeout,
                      device_map, contexts);
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

std::string InterceptingAgent::answering_worker() const {
  if (transport_agent_) {
    return transport_agent_->answering_worker();
  }
  std::string name;
  if (call_log_ && last_peer >= 0) {  // the log notes whose answer it is
    (void)error_in([&] { name = inner_->getWorkerInfo(static_cast<rpc::worker_id_t>(last_peer)).name_; });
  }
  return name;
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
  auto metrics = interceptors_->metrics();
  if (recorder_) {
    metrics.merge(recorder_->metrics());
  }
  if (isGILProfilingEnabled()) {
    const uint64_t waits = gil_waits_;
    metrics["agent.gil_average_wait_time_us"] = std::to_string(waits ? gil_wait_us_ / waits : 0);
  }
  metrics.merge(inner_->getMetrics());
  return metrics;
}

std::unordered_map<std::string, std::string> InterceptingAgent::getDebugInfo() {
  auto info = getMetrics();
  info.merge(inner_->getDebugInfo());
  return info;
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
