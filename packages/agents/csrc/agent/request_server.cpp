#include "agent/request_server.h"

#include <ATen/ThreadLocalState.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/rpc/request_callback_impl.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "agent/request_policy.h"
#include "base/log.h"
#include "inspect/request_inspector.h"
#include "intercept/intercepted_call.h"
#include "rpc/message_kinds.h"
#include "rpc/own_rrefs.h"

namespace rpc_backends {

namespace rpc = torch::distributed::rpc;

namespace {

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

// The text of an error, or another one where torch's does not help.
std::string explained(std::string text) {
  // A future of torch reads the storages of the tensors in its value.
  constexpr std::string_view kNoStorage = "Cannot access storage of ";
  if (text.compare(0, kNoStorage.size(), kNoStorage) != 0) {
    return text;
  }
  const std::string kind = text.substr(kNoStorage.size(), text.find('\n') - kNoStorage.size());
  return "a tensor in the result cannot be sent: it has no storage of its own (" + kind +
         "), as tensors of MKL-DNN and compressed sparse tensors (CSR, CSC, BSR, BSC) do not. Call .to_dense(), or " +
         ".to_sparse_coo(), before you return it";
}

// Names, and how many running requests have each: the most frequent ones first.
std::string listed(const std::map<std::string, size_t>& running) {
  constexpr size_t kMostNames = 5;
  std::vector<std::pair<size_t, std::string>> counts;
  for (const auto& [name, count] : running) {
    counts.emplace_back(count, name.empty() ? "a request of torch" : name);
  }
  std::sort(counts.rbegin(), counts.rend());
  std::string text;
  for (size_t i = 0; i < std::min(counts.size(), kMostNames); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(counts[i].first) + " x " + counts[i].second;
  }
  const size_t left_out = counts.size() - std::min(counts.size(), kMostNames);
  return left_out == 0 ? text : text + " and " + std::to_string(left_out) + " more functions";
}

// Whether a request, or the request in its wrappers, calls a Python function.
bool calls_python(const rpc::Message& request) {
  const int32_t type = inspect(request).type;
  return type == rpc::MessageType::PYTHON_CALL || type == rpc::MessageType::PYTHON_REMOTE_CALL;
}

// A message with the text of an exception.
c10::intrusive_ptr<rpc::Message> explained(c10::intrusive_ptr<rpc::Message> message) {
  const std::string text(message->payload().begin(), message->payload().end());
  const std::string better = explained(text);
  return better == text ? message : rpc::createExceptionResponse(better, message->id());
}

}  // namespace

// A request that interceptors see before it runs.
class RequestServer::IncomingCall final : public InterceptedCall {
 public:
  IncomingCall(RequestServer& server, int peer, uint64_t call, uint64_t bytes, std::vector<c10::Stream> streams,
               Contexts arrived, CallLog::Place* recorded, CreationPtr creation, OnAnswer on_refusal)
      : InterceptedCall(server.agent_.interceptors, Direction::kIncoming, peer, std::chrono::milliseconds(0),
                        std::move(arrived)),
        server_(server),
        call_(call),
        bytes_(bytes),
        streams_(std::move(streams)),
        recorded_(recorded),
        creation_(std::move(creation)),
        on_refusal_(std::move(on_refusal)) {}

 protected:
  void transmit(MessagePtr message, const Contexts& /*contexts*/, const PassingRequestPtr& last) override {
    auto self = std::static_pointer_cast<IncomingCall>(shared_from_this());
    runs_ = true;
    const SpanContext span = recorded_ == nullptr ? SpanContext() : recorded_->span.context;
    server_.execute(std::move(message), peer_id_, bytes_, span, streams_, creation_,
                    [self, last](JitFuture& answer) { self->come_back(last, FuturePtr::reclaim_copy(&answer)); });
  }

  void finish(JitFuture* answer) override {
    const int64_t ended = CallLog::now_us();
    if (answer != nullptr && answer->hasError() && !runs_) {
      on_refusal_(*answer);
    } else if (answer != nullptr) {
      server_.answer_request(peer_id_, call_, *answer, streams_);
    } else {
      server_.end_without_answer(peer_id_);
    }
    if (recorded_ != nullptr) {
      server_.agent_.call_log->end(recorded_, answer, ended);
    }
  }

  const std::string& peer() const override {
    static const std::string unknown;
    try {
      return server_.agent_.members.by_id(peer_id_).name_;
    } catch (const std::exception&) {
      return unknown;
    }
  }

 private:
  RequestServer& server_;
  const std::shared_ptr<AgentState> kept_ = server_.agent_.shared_from_this();
  const uint64_t call_;
  const uint64_t bytes_;
  const std::vector<c10::Stream> streams_;
  CallLog::Place* const recorded_;
  const CreationPtr creation_;
  const OnAnswer on_refusal_;
  std::atomic<bool> runs_{false};
};

RequestServer::RequestServer(AgentState& agent, MessageSender& sender)
    : agent_(agent),
      sender_(sender),
      callback_(std::make_shared<rpc::RequestCallbackImpl>()),
      early_deletions_(std::make_shared<EarlyDeletions>(callback_)),
      answers_(agent.options.max_unanswered_bytes) {}

void RequestServer::serve(int peer, Decoded request, uint64_t bytes, const std::vector<c10::Stream>& streams) {
  const uint64_t call = request.call;
  agent_.activity.begin_request();
  if (peer != agent_.id) {
    ++agent_.counters.received;
  }
  if (const auto error = error_in([&] { begin(peer, std::move(request), bytes, streams); })) {
    auto answer = c10::make_intrusive<JitFuture>(at::AnyClassType::get());
    fail(answer, "the request cannot be served: " + *error);
    answer_request(peer, call, *answer, streams);
  }
}

void RequestServer::begin(int peer, Decoded request, uint64_t bytes, std::vector<c10::Stream> streams) {
  CallLog::Place* recorded = nullptr;
  if (agent_.call_log) {
    recorded = agent_.call_log->begin_incoming(peer, *request.message, request.call, arrived_span(request.contexts));
  }
  early_deletions_->note(*request.message);
  const auto created = created_by(peer, *request.message);
  CreationPtr creation =
      created ? std::make_shared<const EarlyDeletions::Creation>(early_deletions_, created->id, created->fork)
              : nullptr;
  // Before interceptors, which may hold a request, and before torch, which unpickles it.
  if (agent_.policy && peer != agent_.id) {
    const auto& payload = request.message->payload();
    const std::string refusal = agent_.policy->refusal(agent_.members.by_id(peer).name_, request.message->type(),
                                                       {payload.data(), payload.size()});
    if (!refusal.empty()) {
      auto answer = c10::make_intrusive<JitFuture>(at::AnyClassType::get());
      fail(answer, refusal);
      with_rref_failed(*request.message, creation, [&](JitFuture& error) {
        answer_request(peer, request.call, error, streams);
        if (recorded != nullptr) {
          agent_.call_log->end(recorded, &error, CallLog::now_us());
        }
      })(*answer);
      return;
    }
  }
  if (agent_.interceptors && agent_.interceptors->wants(Direction::kIncoming)) {
    auto on_refusal = with_rref_failed(
        *request.message, creation,
        [this, peer, call = request.call, streams](JitFuture& answer) { answer_request(peer, call, answer, streams); });
    std::make_shared<IncomingCall>(*this, peer, request.call, bytes, std::move(streams), std::move(request.contexts),
                                   recorded, std::move(creation), std::move(on_refusal))
        ->begin(std::move(request.message));
    return;
  }
  execute(std::move(request.message), peer, bytes, recorded == nullptr ? SpanContext() : recorded->span.context,
          streams, std::move(creation),
          [this, kept = agent_.shared_from_this(), peer, call = request.call, recorded, streams](JitFuture& answer) {
            const int64_t ended = recorded == nullptr ? 0 : CallLog::now_us();
            answer_request(peer, call, answer, streams);
            if (recorded != nullptr) {  // after the answer was sent, so that the answer does not wait for this
              agent_.call_log->end(recorded, &answer, ended);
            }
          });
}

void RequestServer::execute(c10::intrusive_ptr<Message> request, int peer, uint64_t bytes, const SpanContext& span,
                            std::vector<c10::Stream> streams, CreationPtr creation, OnAnswer on_answer) {
  if (agent_.call_log || agent_.interceptors) {
    if (const auto asked = watch_classes(*request)) {
      on_answer = [rref = *asked, on_answer = std::move(on_answer)](JitFuture& answer) {
        learn_class(rref, answer);  // before the caller has it
        on_answer(answer);
      };
    }
  }
  on_answer = with_rref_failed(*request, creation, std::move(on_answer));
  // A worker's requests to itself are never refused. Torch's own requests are small, and torch does not expect them to
  // fail.
  const bool may_refuse = peer != agent_.id && is_of_a_program(request->type());
  const bool may_hold = may_refuse || (peer != agent_.id && is_fetch(request->type()));
  auto name = [request] { return function_of(inspect(*request)); };
  // Own requests are known by their way here, and not by a name.
  const auto caller =
      agent_.policy
          ? std::make_shared<const std::string>(peer == agent_.id ? std::string() : agent_.members.by_id(peer).name_)
          : nullptr;
  const bool is_python_call = caller && calls_python(*request);
  // NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDeleteLeaks): the job owns the copy of `on_answer`
  auto job = [this, kept = agent_.shared_from_this(), peer, request = std::move(request), span, caller, is_python_call,
              streams = std::move(streams), creation = std::move(creation), on_answer] {
    // A request that enables a profiler for its thread does not disable it completely, so later requests on the same
    // thread would record nothing (torch 2.13). So each request starts with the thread's initial state.
    static thread_local const at::ThreadLocalState fresh;
    const at::ThreadLocalStateGuard guard(fresh);
    const InSpan scope(span);
    const ServedRequest served(caller.get(), is_python_call);
    FuturePtr answer;
    try {
      answer = (*callback_)(*request, streams);
    } catch (const abi::__forced_unwind&) {
      throw;
    } catch (...) {
      answer = c10::make_intrusive<JitFuture>(at::AnyClassType::get());
      answer->setError(std::current_exception());
    }
    const bool later = !answer->completed();
    if (!later) {
      on_answer(*answer);
      return;
    }
    if (creation) {
      creation->settle();
    }
    count_pending(peer, 1);
    agent_.activity.tell();
    answer->addCallback([this, kept, creation, on_answer, peer](JitFuture& done) {
      count_pending(peer, -1);
      on_answer(done);
    });
  };
  ThreadPool::Request wanted{std::move(job), peer, bytes, may_refuse, may_hold, std::move(name), {}};
  auto run = [this, kept = agent_.shared_from_this(), wanted = std::move(wanted),
              on_answer = std::move(on_answer)]() mutable {
    if (agent_.thread_pool->run_request(wanted)) {
      return;
    }
    ++agent_.counters.refused_requests;
    auto answer = c10::make_intrusive<JitFuture>(at::AnyClassType::get());
    fail(answer, "worker " + agent_.members.called(agent_.id) + " is overloaded: requests of this caller that wait " +
                     "for one of its " + std::to_string(agent_.options.num_worker_threads) +
                     " threads (num_worker_threads) would exceed its max_unanswered_bytes (" +
                     std::to_string(agent_.options.max_unanswered_bytes) +
                     "). Make fewer calls at the same time, or raise one of the two options on that worker.");
    on_answer(*answer);
  };
  if (ThreadPool::is_member()) {
    run();
  } else {  // an interceptor held the request until now
    agent_.thread_pool->post(std::move(run));
  }
}

std::optional<CreatedRRef> RequestServer::created_by(int peer, const Message& request) const {
  const auto created = peer == agent_.id ? std::nullopt : created_rref(inspect(request));
  const bool is_of_peer = created && created->id.createdOn_ == peer && created->fork.createdOn_ == peer;
  return is_of_peer ? created : std::nullopt;
}

RequestServer::OnAnswer RequestServer::with_rref_failed(const Message& request, const CreationPtr& creation,
                                                        OnAnswer on_answer) {
  if (!creation) {
    return on_answer;
  }
  const bool is_python = inspect(request).type == MessageType::PYTHON_REMOTE_CALL;
  return [id = creation->id, fork = creation->fork, is_python, on_answer = std::move(on_answer)](JitFuture& answer) {
    c10::intrusive_ptr<Message> told;
    if (answer.hasError()) {
      (void)error_in([&] { told = create_failed_rref(id, fork, is_python, answer.exception_ptr()); });
    }
    if (!told) {
      on_answer(answer);
      return;
    }
    auto created_answer = c10::make_intrusive<JitFuture>(at::AnyClassType::get());
    created_answer->markCompleted(c10::IValue(std::move(told)));
    on_answer(*created_answer);
  };
}

void RequestServer::count_pending(int caller, int64_t change) {
  if (caller == agent_.id) {
    agent_.activity.count_own_pending(change);
  } else {
    agent_.activity.count_pending(caller, change);
  }
}

void RequestServer::warn_if_full() {
  const auto full = agent_.thread_pool->full();
  if (!full) {
    return;
  }
  const std::string threads = std::to_string(agent_.options.num_worker_threads);
  warn("RPC: all threads of worker " + agent_.members.called(agent_.id) +
       " for requests are taken (num_worker_threads=" + threads + "): " + listed(full->running) + ". " +
       std::to_string(full->waiting) + " more wait, the first one for " + std::to_string(full->longest.count()) +
       " s; their callers may see a time-out. Raise num_worker_threads, make fewer calls at the same time, or find out "
       "what these functions wait for (rpc-backends inspect).");
}

void RequestServer::end_without_answer(int peer) {
  if (peer != agent_.id) {
    ++agent_.counters.served;
  }
  agent_.activity.end_request();
  agent_.activity.tell();
}

void RequestServer::answer_request(int peer, uint64_t call, JitFuture& answer,
                                   const std::vector<c10::Stream>& streams) {
  if (peer == agent_.id) {
    agent_.activity.end_request();  // before the answer: the caller may read the count
  }
  bool is_copying = false;
  const auto error = error_in([&] {
    // This may be another thread than the function's. A TorchScript function's future does not know its streams.
    const c10::MultiStreamGuard guard(streams);
    Staging staging;
    Parts parts = encode_answer(peer, call, answer, staging);
    if (staging.empty()) {
      deliver_answer(peer, call, std::move(parts));
      return;
    }
    is_copying = true;
    const auto kept = agent_.shared_from_this();
    const uint64_t bytes = staging.bytes_in_pieces;
    const std::weak_ptr<void> unsent = staging.unsent;
    sender_.after(
        std::move(staging),
        [this, kept, peer, bytes, unsent, is_first = true](Parts piece) mutable {
          if (std::exchange(is_first, false)) {
            answers_.add(peer, bytes, unsent);
          }
          sender_.send_piece(peer, std::move(piece), true);
        },
        [this, kept, peer, call, parts = std::move(parts)](const Error& lost) {
          answer_failed(peer, call, lost ? lost : error_in([&] { deliver_answer(peer, call, parts); }));
          end_answered(peer);
        });
  });
  answer_failed(peer, call, error);
  if (!is_copying || error) {
    end_answered(peer);
  }
}

void RequestServer::answer_failed(int peer, uint64_t call, const Error& error) {
  if (error) {
    contained("while answering a request",
              [&] { answer_with_error(peer, call, "the answer cannot be sent: " + *error); });
  }
}

void RequestServer::end_answered(int peer) {
  if (peer == agent_.id) {
    agent_.activity.tell();
  } else {
    end_without_answer(peer);
  }
}

void RequestServer::deliver_answer(int peer, uint64_t call, Parts parts) {
  if (peer == agent_.id) {
    agent_.handle_own_message(copy(parts));
  } else {
    send_answer(peer, call, std::move(parts));
  }
}

void RequestServer::send_answer(int peer, uint64_t call, Parts parts) {
  const uint64_t bytes = size_of(parts);
  agent_.counters.bytes_sent += bytes;
  if (bytes >= Answers::kLarge) {
    answers_.add(peer, bytes, last_to_leave(parts));
  }
  bool is_lost = false;
  const auto error = error_in([&] {
    try {
      agent_.transport->send(peer, parts, true);
    } catch (const TransportError&) {
      is_lost = true;
      throw;
    }
  });
  if (error) {
    take_unsent(peer, parts, *error, is_lost);
  }
}

void RequestServer::answer_with_error(int peer, uint64_t call, const std::string& text) {
  // Very long texts are cut: a short one can always be sent.
  const std::string part = text.size() > kInlineBytes / 2 ? text.substr(0, kInlineBytes / 2) + "..." : text;
  Parts parts = encode(rpc::createExceptionResponse(part, static_cast<int64_t>(call)), call);
  if (peer == agent_.id) {
    agent_.handle_own_message(copy(parts));
  } else {
    send_answer(peer, call, std::move(parts));
  }
}

void RequestServer::take_unsent(int peer, const Parts& parts, const std::string& why, bool is_lost) {
  if (!agent_.running) {
    return;  // the transport is closed
  }
  const Head head = read_head(parts);
  const std::string who = agent_.members.called(peer);
  ++agent_.counters.unsent_answers;
  warn_seldom("unsent answer to " + who, "RPC: an answer to " + who + " cannot be sent: " + why);
  if (head.type != MessageType::EXCEPTION || !head.payload_inline) {
    answer_with_error(peer, head.call, "the answer cannot be sent: " + why);
  } else if (!is_lost) {
    // The caller then sees its connection end.
    agent_.transport->reject(peer, "an answer cannot be sent: " + why);
  }
}

Parts RequestServer::encode_answer(int peer, uint64_t call, JitFuture& answer, Staging& staging) {
  const auto id = static_cast<int64_t>(call);
  try {
    if (answer.hasError()) {
      return encode(rpc::createExceptionResponse(explained(answer.tryRetrieveErrorMessage()), id), call);
    }
    const DeviceMaps* const maps = agent_.devices.get();
    if (maps != nullptr) {
      answer.wait();  // makes the current streams wait for the value, if the future knows where it is computed
    }
    auto message = answer.value().toCustomClass<Message>();
    if (message->type() == MessageType::EXCEPTION) {
      message = explained(std::move(message));
    }
    Placement placement = answer_placement(peer, maps);
    // The caller may have joined the group just now.
    if (placement.map == nullptr && is_on_accelerator(message->tensors()) && agent_.members.refresh()) {
      placement = answer_placement(peer, agent_.devices.get());
    }
    return sender_.encode_checked(std::move(message), call, {}, placement, staging);
  } catch (const std::exception&) {
    return encode(rpc::createExceptionResponse("the answer cannot be sent: " + thrown_text(), id), call);
  }
}

Placement RequestServer::answer_placement(int peer, const DeviceMaps* maps) const {
  Placement placement{nullptr, [this, peer] { return agent_.members.called(peer); }, false};
  sender_.allow_ways(peer, placement);
  if (maps != nullptr) {
    const auto map = maps->answers.find(peer);
    placement.map = map == maps->answers.end() ? nullptr : &map->second;
  }
  return placement;
}

}  // namespace rpc_backends
