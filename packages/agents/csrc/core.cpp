#include "core.h"

#include <ATen/ThreadLocalState.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/rpc/request_callback_impl.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <optional>
#include <stdexcept>
#include <utility>

#include "intercepted_call.h"
#include "log.h"
#include "python_state.h"

namespace rpc_backends {

namespace rpc = torch::distributed::rpc;
using rpc::MessageType;

namespace {

// At shutdown: seconds for the last messages to be sent, and seconds for running requests to end.
constexpr double kLinger = 2.0;
constexpr double kStopTimeout = 5.0;

// Requests that a program makes, in any number. Torch's own requests follow from these, are small, and some are sent in
// places where waiting is not possible.
bool is_of_a_program(int32_t type) {
  return type == MessageType::SCRIPT_CALL || type == MessageType::PYTHON_CALL ||
      type == MessageType::SCRIPT_REMOTE_CALL || type == MessageType::PYTHON_REMOTE_CALL ||
      type == MessageType::FORWARD_AUTOGRAD_REQ || type == MessageType::RUN_WITH_PROFILING_REQ;
}

// Requests that torch retries, on a thread of its own, when they fail. When the last attempt has failed, RRefContext
// throws. If torch gets a future that has already failed, RRefContext throws on torch's thread, and that ends the
// process. So the agent fails the future a little later, on one of its own threads.
bool is_retried_by_torch(int32_t type) {
  return type == MessageType::RREF_USER_DELETE || type == MessageType::RREF_FORK_REQUEST ||
      type == MessageType::RREF_CHILD_ACCEPT || type == MessageType::CLEANUP_AUTOGRAD_CONTEXT_REQ;
}

constexpr std::chrono::milliseconds kRetryDelay{100};

// torch's own requests whose answers may be large.
bool is_fetch(int32_t type) {
  return type == MessageType::SCRIPT_RREF_FETCH_CALL || type == MessageType::PYTHON_RREF_FETCH_CALL;
}

// Messages for which torch takes the GIL.
bool is_python(int32_t type) {
  return type == MessageType::PYTHON_CALL || type == MessageType::PYTHON_REMOTE_CALL ||
      type == MessageType::PYTHON_RREF_FETCH_CALL || type == MessageType::PYTHON_RET ||
      type == MessageType::PYTHON_RREF_FETCH_RET;
}

// The owner of the largest part, which is probably sent last: when it is released, the message was sent.
std::weak_ptr<void> last_to_leave(const Parts& parts) {
  const Part* largest = nullptr;
  for (const Part& part : parts) {
    if (largest == nullptr || part.size >= largest->size) {
      largest = &part;
    }
  }
  return largest == nullptr ? std::weak_ptr<void>() : largest->owner;
}

// The span of the caller, as the request says.
SpanContext arrived_span(const Contexts& contexts) {
  for (const Context& context : contexts) {
    if (context.name == kSpanContextName) {
      return read_span(context.bytes);
    }
  }
  return {};
}

bool is_on_accelerator(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return tensor.defined() && !tensor.device().is_cpu(); });
}

bool is_number(const std::string& text) {
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  return !text.empty() && *end == 0;
}

}  // namespace

TransportAgent::Core::Core(const std::string& name, int id, std::shared_ptr<Transport> transport,
                           const AgentOptions& options)
    : id_(id),
      options_(options),
      limits_{options.max_message_bytes},
      transport_(std::move(transport)),
      callback_(std::make_unique<rpc::RequestCallbackImpl>()),
      answers_(options.max_unanswered_bytes),
      thread_pool_(std::make_shared<ThreadPool>(
          transport_, ThreadPool::Options{options.num_worker_threads, options.max_unanswered_bytes,
                                          [this](int peer) { return answers_.is_behind(peer); },
                                          [this] { calls_.ask_for_pulse(); }})),
      calls_(options.max_unanswered_bytes, [this](std::vector<Calls::Call> late) { fail_late(std::move(late)); },
             [this] { return thread_pool_->retry(); }) {
  members.add(name, id);
}

void TransportAgent::Core::start() {
  running_ = true;
  calls_.start();
  // The pool's threads keep this object.
  thread_pool_->start([self = shared_from_this()](Event& event) { self->handle(event); });
}

void TransportAgent::Core::stop() {
  const bool was_running = running_.exchange(false);
  order_.close();
  transport_->close(was_running ? kLinger : 0);
  if (!was_running) {
    return;
  }
  for (const Calls::Call& call : calls_.take_all()) {
    end_call(call, "the RPC agent of this worker has been shut down");
  }
  calls_.stop();
  after_copies_.stop();
  thread_pool_->stop(kStopTimeout);
}

// --- calls of this worker ---------------------------------------------------------------------------

FuturePtr TransportAgent::Core::send(const WorkerInfo& to, c10::intrusive_ptr<Message> message,
                                     std::chrono::milliseconds timeout, const Contexts& contexts,
                                     const DeviceMap& device_map) {
  const int peer = to.id_;
  const auto started = Clock::now();
  const bool may_wait = is_of_a_program(message->type()) && !ThreadPool::is_member() && peer != id_;
  const bool is_retried = is_retried_by_torch(message->type());
  const uint64_t call = calls_.next_id();
  last_call_sent = call;
  const DeviceMaps* const maps = devices.get();
  Placement placement{nullptr, [&to] { return to.name_; }, true};
  if (!device_map.empty()) {
    placement.map = &device_map;
  } else if (maps != nullptr) {
    const auto found = maps->requests.find(to.name_);
    placement.map = found == maps->requests.end() ? nullptr : &found->second;
  }
  Copies copies;
  Parts parts = encode_checked(std::move(message), call, contexts, placement, copies);
  const uint64_t bytes = size_of(parts);
  FuturePtr future =
      calls_.add(call, {peer, new_future(maps), bytes, last_to_leave(parts), timeout, {}, {}}, started, may_wait);
  if (!future) {
    future = new_future(maps);
    fail(future, timeout_text(timeout));
    return future;
  }
  if (copies.empty()) {
    send_request(peer, call, std::move(parts), is_retried);
    return future;
  }
  auto error = error_in([&] {
    after(std::move(copies), [self = shared_from_this(), peer, call, parts = std::move(parts), is_retried] {
      self->send_request(peer, call, parts, is_retried);
    });
  });
  if (!error && !running_) {
    error = "the RPC agent of this worker has been shut down";
  }
  if (error) {
    if (const auto taken = calls_.take(call, peer)) {
      end_call(*taken, *error);
    }
  }
  return future;
}

void TransportAgent::Core::after(Copies copies, std::function<void()> then) {
  copies.record();
  // On another thread than that of the copies, which must not wait for anything else.
  after_copies_.run(std::move(copies), [pool = thread_pool_, then = std::move(then)] { pool->post(then); });
}

FuturePtr TransportAgent::Core::new_future(const DeviceMaps* maps) const {
  return maps == nullptr ? c10::make_intrusive<JitFuture>(at::AnyClassType::get())
                         : c10::make_intrusive<JitFuture>(at::AnyClassType::get(), maps->devices);
}

void TransportAgent::Core::send_request(int peer, uint64_t call, Parts parts, bool is_retried) {
  auto error = error_in([&] {
    if (peer == id_) {
      // Like any other call, but without the transport; the received message shares no memory with the sent one.
      thread_pool_->post([self = shared_from_this(), copied = copy(parts)] { self->handle_own_message(copied); });
      return;
    }
    ++sent_;
    bytes_sent_ += size_of(parts);
    const std::string lost = why_lost(peer);
    if (!lost.empty()) {
      throw TransportError(lost);
    }
    transport_->send(peer, std::move(parts), false);
  });
  if (!error && !running_) {
    error = "the RPC agent of this worker has been shut down";
  }
  if (error && is_retried && running_) {
    calls_.fail_after(kRetryDelay, call, *error);
  } else if (error) {
    if (const auto taken = calls_.take(call, peer)) {
      end_call(*taken, *error);
    }
  }
}

Parts TransportAgent::Core::encode_checked(c10::intrusive_ptr<Message> message, uint64_t call, const Contexts& contexts,
                                           const Placement& placement, Copies& copies) const {
  Parts parts = encode(std::move(message), call, contexts, placement, copies);
  const uint64_t bytes = size_of(parts);
  if (bytes > options_.max_message_bytes) {
    throw std::runtime_error("a message of " + std::to_string(bytes) + " bytes is larger than max_message_bytes (" +
                             std::to_string(options_.max_message_bytes) + ") of this worker");
  }
  return parts;
}

void TransportAgent::Core::take_answer(int peer, Decoded& answer, EventOrder::Handling& event) {
  const auto call = calls_.take(answer.call, peer);
  event.note();  // a loss can no longer fail this call, and its callbacks may be slow
  if (!call) {
    return;  // the call has timed out
  }
  count_end(*call);
  if (answer.message->type() == MessageType::EXCEPTION) {
    const std::vector<char>& text = answer.message->payload();
    fail(call->future, std::string(text.begin(), text.end()));
  } else {
    complete(call->future, c10::IValue(std::move(answer.message)), std::move(answer.on_devices));
  }
  tell_progress();
}

void TransportAgent::Core::count_end(const Calls::Call& call) {
  if (call.peer != id_) {
    ++answered_;
  }
}

void TransportAgent::Core::end_call(const Calls::Call& call, const std::string& error) {
  count_end(call);
  contained("while ending a call",
            [&] { fail(call.future, "RPC to " + members.called(call.peer) + " failed: " + error); });
  tell_progress();
}

void TransportAgent::Core::fail_late(std::vector<Calls::Call> late) {
  const auto all = std::make_shared<const std::vector<Calls::Call>>(std::move(late));
  const auto fail_all = [self = shared_from_this(), all] {
    for (const Calls::Call& call : *all) {
      if (!call.error.empty()) {
        self->end_call(call, call.error);
        continue;
      }
      self->count_end(call);
      contained("while ending a call", [&] { fail(call.future, timeout_text(call.timeout)); });
    }
    self->tell_progress();
  };
  // On another thread, because callbacks of these futures may be slow and this thread handles all timeouts.
  if (!contained("while ending calls", [&] { thread_pool_->post(fail_all); })) {
    fail_all();
  }
}

// --- what arrives -----------------------------------------------------------------------------------

void TransportAgent::Core::handle(Event& event) {
  EventOrder::Handling handling(order_, event.order);
  switch (event.kind) {
    case Event::Kind::kMessage:
      bytes_received_ += size_of(event.parts);
      handle_message(event.peer, event.parts, handling);
      break;
    case Event::Kind::kLost:
      handling.wait_for_earlier();
      lose(event);
      break;
    case Event::Kind::kFound:
      handling.wait_for_earlier();
      forget_loss(event.peer);
      break;
    case Event::Kind::kUnsent:
      handling.note();
      take_unsent(event.peer, event.parts, event.reason, false);
      break;
  }
}

void TransportAgent::Core::handle_own_message(const Parts& parts) {
  EventOrder::Handling none;
  handle_message(id_, parts, none);
}

void TransportAgent::Core::handle_message(int peer, const Parts& parts, EventOrder::Handling& event) {
  const DeviceMaps* const maps = devices.get();
  if (maps == nullptr || maps->devices.empty()) {
    handle_decoded(peer, parts, event, {});
    return;
  }
  const std::vector<c10::Stream> streams = streams_from_pool(maps->devices);
  const c10::MultiStreamGuard guard(streams);
  handle_decoded(peer, parts, event, streams);
}

Decoded TransportAgent::Core::decode_message(const Parts& parts, Copies& copies) {
  const DeviceMaps* maps = devices.get();
  static const std::vector<c10::Device> none;
  try {
    return decode(parts, limits_, maps == nullptr ? none : maps->devices, copies);
  } catch (const UnknownDevice&) {
    // The sender may have joined the group just now.
    if (!members.refresh() || devices.get() == maps) {
      throw;
    }
    maps = devices.get();
    return decode(parts, limits_, maps->devices, copies);
  }
}

void TransportAgent::Core::handle_decoded(int peer, const Parts& parts, EventOrder::Handling& event,
                                          const std::vector<c10::Stream>& streams) {
  std::optional<Decoded> decoded;
  // decode() throws BadFrame, or std::bad_alloc if there is not enough memory.
  const auto bad = error_in([&] {
    Copies copies;
    decoded = decode_message(parts, copies);
    if (!copies.empty()) {
      copies.record();
      after_copies_.run(std::move(copies));
    }
  });
  if (bad) {
    refuse(peer, parts, *bad);
    return;
  }
  if (is_python(decoded->message->type())) {
    PythonState::keep();
  }
  if (decoded->kind == FrameKind::kResponse) {
    take_answer(peer, *decoded, event);
    return;
  }
  event.note();
  const uint64_t call = decoded->call;
  ++active_requests_;
  if (peer != id_) {
    ++received_;
  }
  if (const auto error = error_in([&] { serve(peer, std::move(*decoded), size_of(parts), streams); })) {
    auto response = c10::make_intrusive<JitFuture>(at::AnyClassType::get());
    fail(response, "the request cannot be served: " + *error);
    reply(peer, call, *response, streams);
  }
}

void TransportAgent::Core::refuse(int peer, const Parts& parts, const std::string& why) {
  ++bad_frames_;
  std::optional<Head> head;
  (void)error_in([&] { head = read_head(parts); });
  const std::string who = members.called(peer);
  if (!head) {
    const std::string reason = "an invalid message: " + why;
    warn("RPC: " + who + " has sent " + reason + ". The connection is closed.");
    transport_->reject(peer, reason);
    return;
  }
  const bool is_request = head->kind == FrameKind::kRequest;
  warn_seldom("bad message of " + who, "RPC: " + who + " has sent " + (is_request ? "a request" : "an answer") +
                                           " that this worker refuses: " + why + ". The call fails.");
  if (is_request) {
    reply_error(peer, head->call, "worker " + members.called(id_) + " refuses the request: " + why);
  } else if (const auto call = calls_.take(head->call, peer)) {
    end_call(*call, "this worker refuses the answer: " + why);
  }
}

// A request that interceptors see before it runs.
class TransportAgent::Core::IncomingCall final : public InterceptedCall {
 public:
  IncomingCall(std::shared_ptr<Core> core, int peer, uint64_t call, uint64_t bytes, std::vector<c10::Stream> streams,
               Contexts arrived, CallLog::Place* recorded)
      : InterceptedCall(core->interceptors_, Direction::kIncoming, peer, std::chrono::milliseconds(0),
                        std::move(arrived)),
        core_(std::move(core)),
        call_(call),
        bytes_(bytes),
        streams_(std::move(streams)),
        recorded_(recorded) {}

 protected:
  void transmit(MessagePtr message, const Contexts& /*contexts*/, const PassingRequestPtr& last) override {
    auto self = std::static_pointer_cast<IncomingCall>(shared_from_this());
    const SpanContext span = recorded_ == nullptr ? SpanContext() : recorded_->span.context;
    core_->execute(std::move(message), peer_id_, bytes_, span, streams_, [self, last](JitFuture& response) {
      self->come_back(last, FuturePtr::reclaim_copy(&response));
    });
  }

  void finish(JitFuture* answer) override {
    const int64_t ended = CallLog::now_us();
    if (answer != nullptr) {
      core_->reply(peer_id_, call_, *answer, streams_);
    } else {
      core_->reply_nothing(peer_id_);
    }
    if (recorded_ != nullptr) {
      core_->call_log_->end(recorded_, answer, ended);
    }
  }

  const std::string& peer() const override {
    static const std::string unknown;
    try {
      return core_->members.by_id(peer_id_).name_;
    } catch (const std::exception&) {
      return unknown;
    }
  }

 private:
  const std::shared_ptr<Core> core_;
  const uint64_t call_;
  const uint64_t bytes_;
  const std::vector<c10::Stream> streams_;
  CallLog::Place* const recorded_;
};

void TransportAgent::Core::serve(int peer, Decoded request, uint64_t bytes, std::vector<c10::Stream> streams) {
  CallLog::Place* recorded = nullptr;
  if (call_log_) {
    recorded = call_log_->begin_incoming(peer, *request.message, request.call, arrived_span(request.contexts));
  }
  if (interceptors_ && interceptors_->wants(Direction::kIncoming)) {
    std::make_shared<IncomingCall>(shared_from_this(), peer, request.call, bytes, std::move(streams),
                                   std::move(request.contexts), recorded)
        ->begin(std::move(request.message));
    return;
  }
  execute(std::move(request.message), peer, bytes, recorded == nullptr ? SpanContext() : recorded->span.context, streams,
          [self = shared_from_this(), peer, call = request.call, recorded, streams](JitFuture& response) {
            const int64_t ended = recorded == nullptr ? 0 : CallLog::now_us();
            self->reply(peer, call, response, streams);
            if (recorded != nullptr) {  // after the answer was sent, so that the answer does not wait for this
              self->call_log_->end(recorded, &response, ended);
            }
          });
}

void TransportAgent::Core::execute(c10::intrusive_ptr<Message> request, int peer, uint64_t bytes,
                                    const SpanContext& span, std::vector<c10::Stream> streams,
                                    OnResponse on_response) {
  // A worker's requests to itself are never refused. Torch's own requests are small, and torch does not expect them to
  // fail.
  const bool may_refuse = peer != id_ && is_of_a_program(request->type());
  const bool may_hold = may_refuse || (peer != id_ && is_fetch(request->type()));
  auto job = [self = shared_from_this(), request = std::move(request), span, streams = std::move(streams),
              on_response] {
    // A request that enables a profiler for its thread does not disable it completely, so later requests on the same
    // thread would record nothing (torch 2.13). So each request starts with the thread's initial state.
    static thread_local const at::ThreadLocalState fresh;
    const at::ThreadLocalStateGuard guard(fresh);
    const InSpan scope(span);
    FuturePtr response;
    try {
      response = (*self->callback_)(*request, streams);
    } catch (const abi::__forced_unwind&) {
      throw;
    } catch (...) {
      response = c10::make_intrusive<JitFuture>(at::AnyClassType::get());
      response->setError(std::current_exception());
    }
    const bool later = !response->completed();
    self->async_requests_ += later ? 1 : 0;
    response->addCallback([self, on_response, later](JitFuture& done) {
      self->async_requests_ -= later ? 1 : 0;
      on_response(done);
    });
  };
  ThreadPool::Request wanted{std::move(job), peer, bytes, may_refuse, may_hold};
  auto run = [self = shared_from_this(), wanted = std::move(wanted), on_response = std::move(on_response)]() mutable {
    if (self->thread_pool_->run_request(wanted)) {
      return;
    }
    ++self->refused_requests_;
    auto response = c10::make_intrusive<JitFuture>(at::AnyClassType::get());
    fail(response, "worker " + self->members.called(self->id_) + " is overloaded: requests of this caller that wait " +
                       "for one of its " + std::to_string(self->options_.num_worker_threads) +
                       " threads (num_worker_threads) would exceed its max_unanswered_bytes (" +
                       std::to_string(self->options_.max_unanswered_bytes) +
                       "). Make fewer calls at the same time, or raise one of the two options on that worker.");
    on_response(*response);
  };
  if (ThreadPool::is_member()) {
    run();
  } else {  // an interceptor held the request until now
    thread_pool_->post(std::move(run));
  }
}

void TransportAgent::Core::reply_nothing(int peer) {
  if (peer != id_) {
    ++served_;
  }
  --active_requests_;
  tell_progress();
}

void TransportAgent::Core::reply(int peer, uint64_t call, JitFuture& response,
                                 const std::vector<c10::Stream>& streams) {
  if (peer == id_) {
    --active_requests_;  // before the answer: the caller may read the count
  }
  bool is_copying = false;
  const auto error = error_in([&] {
    // This may be another thread than the function's. A TorchScript function's future does not know its streams.
    const c10::MultiStreamGuard guard(streams);
    Copies copies;
    Parts parts = encode_reply(peer, call, response, copies);
    if (copies.empty()) {
      send_reply(peer, call, std::move(parts));
      return;
    }
    is_copying = true;
    after(std::move(copies), [self = shared_from_this(), peer, call, parts = std::move(parts)] {
      const auto unsent = error_in([&] { self->send_reply(peer, call, parts); });
      self->reply_failed(peer, call, unsent);
      self->end_reply(peer);
    });
  });
  reply_failed(peer, call, error);
  if (!is_copying || error) {
    end_reply(peer);
  }
}

void TransportAgent::Core::reply_failed(int peer, uint64_t call, const std::optional<std::string>& error) {
  if (error) {
    contained("while answering a request", [&] { reply_error(peer, call, "the answer cannot be sent: " + *error); });
  }
}

void TransportAgent::Core::end_reply(int peer) {
  if (peer == id_) {
    tell_progress();
  } else {
    reply_nothing(peer);
  }
}

void TransportAgent::Core::send_reply(int peer, uint64_t call, Parts parts) {
  if (peer == id_) {
    handle_own_message(copy(parts));
  } else {
    send_answer(peer, call, std::move(parts));
  }
}

void TransportAgent::Core::send_answer(int peer, uint64_t call, Parts parts) {
  const uint64_t bytes = size_of(parts);
  bytes_sent_ += bytes;
  if (bytes >= Answers::kLarge) {
    answers_.add(peer, bytes, last_to_leave(parts));
  }
  bool is_lost = false;
  const auto error = error_in([&] {
    try {
      transport_->send(peer, parts, true);
    } catch (const TransportError&) {
      is_lost = true;
      throw;
    }
  });
  if (error) {
    take_unsent(peer, parts, *error, is_lost);
  }
}

void TransportAgent::Core::reply_error(int peer, uint64_t call, const std::string& text) {
  // Very long texts are cut: a short one can always be sent.
  const std::string part = text.size() > kInlineBytes / 2 ? text.substr(0, kInlineBytes / 2) + "..." : text;
  Parts parts = encode(rpc::createExceptionResponse(part, static_cast<int64_t>(call)), call);
  if (peer == id_) {
    handle_own_message(copy(parts));
  } else {
    send_answer(peer, call, std::move(parts));
  }
}

void TransportAgent::Core::take_unsent(int peer, const Parts& parts, const std::string& why, bool is_lost) {
  if (!running_) {
    return;  // the transport is closed
  }
  const Head head = read_head(parts);
  const std::string who = members.called(peer);
  ++unsent_answers_;
  warn_seldom("unsent answer to " + who, "RPC: an answer to " + who + " cannot be sent: " + why);
  if (head.type != MessageType::EXCEPTION || !head.payload_inline) {
    reply_error(peer, head.call, "the answer cannot be sent: " + why);
  } else if (!is_lost) {
    // The caller then sees its connection end.
    transport_->reject(peer, "an answer cannot be sent: " + why);
  }
}

Parts TransportAgent::Core::encode_reply(int peer, uint64_t call, JitFuture& response, Copies& copies) {
  const auto id = static_cast<int64_t>(call);
  try {
    if (response.hasError()) {
      return encode(rpc::createExceptionResponse(response.tryRetrieveErrorMessage(), id), call);
    }
    const DeviceMaps* const maps = devices.get();
    if (maps != nullptr) {
      response.wait();  // makes the current streams wait for the value, if the future knows where it is computed
    }
    auto message = response.value().toCustomClass<Message>();
    Placement placement = answer_placement(peer, maps);
    // The caller may have joined the group just now.
    if (placement.map == nullptr && is_on_accelerator(message->tensors()) && members.refresh()) {
      placement = answer_placement(peer, devices.get());
    }
    return encode_checked(std::move(message), call, {}, placement, copies);
  } catch (const std::exception&) {
    return encode(rpc::createExceptionResponse("the answer cannot be sent: " + thrown_text(), id), call);
  }
}

Placement TransportAgent::Core::answer_placement(int peer, const DeviceMaps* maps) const {
  Placement placement{nullptr, [this, peer] { return members.called(peer); }, false};
  if (maps != nullptr) {
    const auto found = maps->answers.find(peer);
    placement.map = found == maps->answers.end() ? nullptr : &found->second;
  }
  return placement;
}

// --- peers ------------------------------------------------------------------------------------------

void TransportAgent::Core::forget_loss(int peer) {
  std::lock_guard<std::mutex> lock(lost_mutex_);
  lost_.erase(peer);
  lost_now_ = lost_.size();
}

void TransportAgent::Core::lose(const Event& event) {
  const int peer = event.peer;
  const std::string& reason = event.reason;
  {
    std::lock_guard<std::mutex> lock(lost_mutex_);
    lost_[peer] = reason;
    lost_now_ = lost_.size();
  }
  ++lost_peers_;
  for (const Calls::Call& call : calls_.take_all(peer)) {
    end_call(call, "the connection is lost: " + reason);
  }
  if (tell_lost_ && running_) {
    contained("while handling a lost worker", [&] { tell_lost_(peer, reason); });
  }
}

std::string TransportAgent::Core::why_lost(int peer) const {
  if (lost_now_ == 0) {
    return {};
  }
  std::lock_guard<std::mutex> lock(lost_mutex_);
  const auto found = lost_.find(peer);
  return found == lost_.end() ? std::string() : "the connection is lost: " + found->second;
}

void TransportAgent::Core::forget(int peer, const std::string& reason) {
  transport_->forget(peer);
  for (const Calls::Call& call : calls_.take_all(peer)) {
    end_call(call, reason);
  }
  members.remove(peer);
  forget_loss(peer);
}

// --- active calls -----------------------------------------------------------------------------------

bool TransportAgent::Core::is_idle() const {
  return active_requests_ == 0 && calls_.waiting() == 0;
}

bool TransportAgent::Core::wait_until_idle(double seconds) {
  std::unique_lock<std::mutex> lock(idle_mutex_);
  ++idle_waiters_;
  const bool idle = idle_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return is_idle(); });
  --idle_waiters_;
  return idle;
}

void TransportAgent::Core::tell_progress() {
  if (idle_waiters_ > 0) {
    std::lock_guard<std::mutex> lock(idle_mutex_);
    idle_.notify_all();
  }
}

Traffic TransportAgent::Core::traffic() const {
  return {sent_, answered_, received_, served_};
}

void TransportAgent::Core::add_gil_wait(std::chrono::microseconds wait) {
  ++gil_waits_;
  gil_wait_us_ += static_cast<uint64_t>(wait.count());
}

std::unordered_map<std::string, std::string> TransportAgent::Core::gil_metrics() const {
  const uint64_t waits = gil_waits_;
  return {{"agent.gil_average_wait_time_us", std::to_string(waits ? gil_wait_us_ / waits : 0)}};
}

std::unordered_map<std::string, std::string> TransportAgent::Core::metrics() const {
  std::unordered_map<std::string, std::string> found{
      // These names are torch's where torch's agent has the same metric.
      {"agent.thread_pool_size", std::to_string(options_.num_worker_threads)},
      {"agent.num_idle_threads", std::to_string(thread_pool_->waiting())},
      {"agent.client_active_calls", std::to_string(calls_.waiting())},
      {"agent.server_active_calls", std::to_string(active_requests_)},
      {"agent.server_active_async_calls", std::to_string(async_requests_)},
      {"agent.threads", std::to_string(thread_pool_->threads())},
      {"agent.queued_requests", std::to_string(thread_pool_->queued())},
      {"agent.unanswered_bytes", std::to_string(calls_.unanswered_bytes())},
      {"agent.requests_sent", std::to_string(sent_)},
      {"agent.requests_received", std::to_string(received_)},
      {"agent.bytes_sent", std::to_string(bytes_sent_)},
      {"agent.bytes_received", std::to_string(bytes_received_)},
      {"agent.timeouts", std::to_string(calls_.timeouts())},
      {"agent.late_answers", std::to_string(calls_.late_answers())},
      {"agent.bad_frames", std::to_string(bad_frames_)},
      {"agent.connections_lost", std::to_string(lost_peers_)},
      {"agent.unsent_answers", std::to_string(unsent_answers_)},
      {"agent.refused_requests", std::to_string(refused_requests_)},
      // A sum over all agents of this process.
      {"agent.contained_errors", std::to_string(noted_errors())},
  };
  for (const auto& [name, value] : transport_->metrics()) {
    if (is_number(value)) {  // all metrics are numbers; getDebugInfo() has the other values
      found["transport." + name] = value;
    }
  }
  return found;
}

std::unordered_map<std::string, std::string> TransportAgent::Core::debug_info() const {
  auto found = metrics();
  for (const auto& [name, value] : transport_->metrics()) {
    found["transport." + name] = value;
  }
  return found;
}

}  // namespace rpc_backends
