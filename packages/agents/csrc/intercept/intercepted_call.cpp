#include "intercept/intercepted_call.h"

#include <torch/csrc/distributed/rpc/utils.h>

#include <stdexcept>
#include <utility>

#include "base/log.h"
#include "intercept/message_head.h"
#include "rpc_backends_agents/tensor_values.h"

namespace rpc_backends {

using torch::distributed::rpc::Message;
using torch::distributed::rpc::MessageType;

namespace {

FuturePtr completed(MessagePtr message) {
  auto future = c10::make_intrusive<JitFuture>(at::AnyClassType::get());
  future->markCompleted(c10::IValue(std::move(message)));
  return future;
}

FuturePtr error_of(const std::string& text, ErrorKind kind) {
  const bool is_plain = kind == ErrorKind::kOther;
  const auto torchs = static_cast<torch::distributed::rpc::RPCErrorType>(kind);
  return failed(std::make_exception_ptr(
      std::runtime_error(is_plain ? text : torch::distributed::rpc::makeRPCError(text, torchs))));
}

}  // namespace

FuturePtr failed(std::exception_ptr error) {
  auto future = c10::make_intrusive<JitFuture>(at::AnyClassType::get());
  future->setError(std::move(error));
  return future;
}

// Something that an interceptor decides exactly once: a request or an answer.
class Decision {
 public:
  // Called when the interceptor has returned. If it has not decided yet, it holds the message from now on.
  void returned() {
    if (is_decided()) {
      return;
    }
    call_->chain_->held();
    State fresh = State::kFresh;
    if (state_.compare_exchange_strong(fresh, State::kHeld)) {
      call_->keep();
    } else {
      call_->chain_->moved();
    }
  }

  // Called when the interceptor has thrown an exception.
  void threw(const std::string& error) {
    if (state_.exchange(State::kDecided) == State::kDecided) {
      warn("RPC: the interceptor '" + name() + "' failed after its decision: " + error);
    } else {
      come_back(back_, error_of("the interceptor '" + name() + "' failed: " + error, ErrorKind::kOther));
    }
  }

 protected:
  enum class State { kFresh, kHeld, kDecided };

  Decision(std::shared_ptr<InterceptedCall> call, size_t position, PassingRequestPtr back)
      : call_(std::move(call)), position_(position), back_(std::move(back)) {}

  ~Decision() {
    const State state = state_;
    if (state == State::kDecided) {
      return;
    }
    if (!call_->is_over()) {
      // On another thread: this one may hold locks.
      call_->chain_->agent().scheduler->post([call = call_, back = back_, name = name()] {
        call->come_back(back, error_of("the interceptor '" + name + "' released the message without a decision",
                                       ErrorKind::kOther));
      });
    }
    if (state == State::kHeld) {
      call_->chain_->moved();
    }
  }

  // Exists while a decision is carried out. The constructor throws if there is already a decision.
  class Deciding {
   public:
    explicit Deciding(Decision& decision) : decision_(decision), before_(decision.state_.exchange(State::kDecided)) {
      if (before_ == State::kDecided) {
        throw std::logic_error("the interceptor '" + decision.name() + "' has already decided this message");
      }
    }
    ~Deciding() {
      if (before_ == State::kHeld) {
        decision_.call_->chain_->moved();
      }
    }
    Deciding(const Deciding&) = delete;
    Deciding& operator=(const Deciding&) = delete;

   private:
    Decision& decision_;
    const State before_;
  };

  const std::string& name() const { return call_->chain_->installed()[position_].name; }
  bool is_decided() const { return state_ == State::kDecided; }
  void come_back(const PassingRequestPtr& last, FuturePtr answer) { call_->come_back(last, std::move(answer)); }

  const std::shared_ptr<InterceptedCall> call_;
  const size_t position_;         // of the interceptor in the chain
  const PassingRequestPtr back_;  // the next stop of an answer; null at the start of the chain

 private:
  std::atomic<State> state_{State::kFresh};
};

class PassingRequest final : public Request,
                             public TensorValues,
                             public Decision,
                             public std::enable_shared_from_this<PassingRequest> {
 public:
  // `step`: the interceptor's place in the order in which the request passes the interceptors, from 0.
  PassingRequest(std::shared_ptr<InterceptedCall> call, size_t position, size_t step,
                 std::shared_ptr<MessageHead> message, PassingRequestPtr from)
      : Decision(std::move(call), position, std::move(from)), step_(step), message_(std::move(message)) {}

  const RequestHead& head() const override { return *message_; }

  void observe(std::shared_ptr<Observer> observer) override {
    if (is_decided() || observer_) {
      throw std::logic_error("the interceptor '" + name() + "' may call observe() only once, and before its decision");
    }
    observer_ = std::move(observer);
    call_->add_observer(observer_);
  }

  bool carries_context() const override { return call_->chain_->agent().carries_context; }

  void attach(std::string_view context) override {
    if (is_decided() || call_->direction_ == Direction::kIncoming) {
      throw std::logic_error("the interceptor '" + name() +
                             "' may call attach() only on an outgoing request, and "
                             "before its decision");
    }
    Contexts all;
    collect(all, back_.get());
    all.push_back({name(), std::string(context)});
    if (context.size() > kMaxContextBytes || size_of(all) > kMaxAllContextBytes) {
      throw std::length_error("the interceptor '" + name() + "' attaches " + std::to_string(context.size()) +
                              " bytes; one interceptor may attach " + std::to_string(kMaxContextBytes) +
                              " and all together " + std::to_string(kMaxAllContextBytes));
    }
    if (carries_context()) {
      context_ = context;
    }
  }

  std::string_view context() const override {
    for (const Context& context : call_->arrived_) {
      if (context.name == name()) {
        return context.bytes;
      }
    }
    return {};
  }

  bool flip_bit(uint64_t element, uint64_t bit) override { return message_->flip_bit(element, bit); }

  void pass() override {
    const Deciding deciding(*this);
    send_on(message_);
  }

  void repeat(uint64_t times) override {
    if (times == 0) {
      throw std::invalid_argument("repeat() passes a request on at least once; use drop() to drop it");
    }
    const Deciding deciding(*this);
    call_->repeated_ = true;
    // All copies are made first, because passing a message on may destroy it.
    std::vector<std::shared_ptr<MessageHead>> all;
    while (all.size() + 1 < times) {
      all.push_back(std::make_shared<MessageHead>(call_, message_->copy()));
    }
    all.push_back(message_);
    for (const auto& message : all) {
      send_on(message);
    }
  }

  void answer(int32_t type, std::string_view payload) override {
    if ((type & torch::distributed::rpc::MessageTypeFlags::RESPONSE_TYPE) == 0) {
      throw std::invalid_argument("answer() needs a response type, but " + std::to_string(type) + " is not one");
    }
    const Deciding deciding(*this);
    come_back(back_,
              completed(c10::make_intrusive<Message>(std::vector<char>(payload.begin(), payload.end()),
                                                     std::vector<at::Tensor>(), static_cast<MessageType>(type))));
  }

  void drop() override {
    const Deciding deciding(*this);
    message_->take();
    call_->drop();
  }

  void fail(std::string_view text, ErrorKind kind) override {
    const Deciding deciding(*this);
    come_back(back_, error_of(std::string(text), kind));
  }

  // Adds the contexts that the interceptors have attached so far.
  static void collect(Contexts& contexts, const PassingRequest* last) {
    for (; last != nullptr; last = last->back_.get()) {
      if (!last->context_.empty()) {
        contexts.push_back({last->name(), last->context_});
      }
    }
  }

  const std::shared_ptr<Observer>& observer() const { return observer_; }
  const PassingRequestPtr& back() const { return back_; }
  size_t position() const { return position_; }

 private:
  // Passes the request to the next interceptor. Ends the call if the agent has stopped, because nothing else would.
  void send_on(const std::shared_ptr<MessageHead>& message) {
    if (call_->chain_->is_stopped()) {
      call_->shut_down();
    } else {
      call_->advance(step_ + 1, message, shared_from_this());
    }
  }

  const size_t step_;
  const std::shared_ptr<MessageHead> message_;
  std::shared_ptr<Observer> observer_;
  std::string context_;
};

class PassingAnswer final : public Answer, public TensorValues, public Decision {
 public:
  PassingAnswer(std::shared_ptr<InterceptedCall> call, const PassingRequest& request, FuturePtr answer)
      : Decision(std::move(call), request.position(), request.back()), answer_(std::move(answer)) {}

  bool is_error() const override { return answer_->hasError(); }
  Text error() const override { return is_error() ? Text(answer_->tryRetrieveErrorMessage()) : Text(); }
  int32_t type() const override { return is_error() ? 0 : static_cast<int32_t>(message().type()); }
  std::string_view payload() const override {
    return is_error() ? std::string_view() : std::string_view(message().payload().data(), message().payload().size());
  }
  uint64_t bytes() const override { return is_error() ? 0 : bytes_of(message()); }

  bool flip_bit(uint64_t element, uint64_t bit) override {
    if (is_decided() || is_error()) {
      return false;
    }
    message();
    return flip_bit_of(*message_, element, bit);
  }

  void pass() override {
    const Deciding deciding(*this);
    // A callback sets the device streams of the answer for this thread, which may be any thread.
    answer_->addCallback([this](JitFuture&) { come_back(back_, answer_); });
  }

  void drop() override {
    const Deciding deciding(*this);
    call_->drop();
  }

  void fail(std::string_view text, ErrorKind kind) override {
    const Deciding deciding(*this);
    come_back(back_, error_of(std::string(text), kind));
  }

 private:
  const Message& message() const {
    if (!message_) {
      message_ = answer_->constValue().toCustomClass<Message>();
    }
    return *message_;
  }

  const FuturePtr answer_;
  mutable MessagePtr message_;
};

// --- the call ---------------------------------------------------------------------------------------

InterceptedCall::InterceptedCall(std::shared_ptr<InterceptorChain> chain, Direction direction, int peer_id,
                                 std::chrono::milliseconds timeout, Contexts arrived)
    : chain_(std::move(chain)),
      direction_(direction),
      peer_id_(peer_id),
      timeout_(timeout),
      arrived_(std::move(arrived)) {}

InterceptedCall::~InterceptedCall() {
  for (Observing* entry = observing_; entry != nullptr;) {
    delete std::exchange(entry, entry->next);
  }
}

void InterceptedCall::begin(MessagePtr message) {
  advance(0, std::make_shared<MessageHead>(shared_from_this(), std::move(message)), nullptr);
}

void InterceptedCall::advance(size_t step, const std::shared_ptr<MessageHead>& message, const PassingRequestPtr& from) {
  const auto& installed = chain_->installed();
  for (; step < installed.size(); ++step) {
    const size_t position = direction_ == Direction::kOutgoing ? step : installed.size() - 1 - step;
    Interceptor& interceptor = *installed[position].interceptor;
    if (!interceptor.wants(direction_)) {
      continue;
    }
    const auto request = std::make_shared<PassingRequest>(shared_from_this(), position, step, message, from);
    if (const auto error = error_in([&] { interceptor.on_request(request); })) {
      request->threw(*error);
    }
    request->returned();
    return;
  }
  Contexts contexts;
  PassingRequest::collect(contexts, from.get());
  transmit(message->take(), contexts, from);
}

void InterceptedCall::come_back(PassingRequestPtr last, FuturePtr answer) {
  for (; last; last = last->back()) {
    const auto observer = last->observer();
    if (!observer || !observer->wants_answers()) {
      continue;
    }
    if (over_) {
      return;  // another answer came first, or the call has timed out
    }
    const auto passing = std::make_shared<PassingAnswer>(shared_from_this(), *last, std::move(answer));
    if (const auto error = error_in([&] { observer->on_answer(passing); })) {
      passing->threw(*error);
    }
    passing->returned();
    return;
  }
  end(answer->hasError() ? End::Kind::kError : End::Kind::kAnswer, answer.get());
}

bool InterceptedCall::wants_answers(const PassingRequest* last) {
  for (; last != nullptr; last = last->back().get()) {
    if (last->observer() && last->observer()->wants_answers()) {
      return true;
    }
  }
  return false;
}

void InterceptedCall::observe_end(JitFuture& answer) {
  if (observing_ == nullptr) {
    return;
  }
  answer.addCallback([self = shared_from_this()](JitFuture& done) {
    if (!self->over_.exchange(true)) {
      contained("in an interceptor at the end of a call",
                [&] { self->tell_observers(done.hasError() ? End::Kind::kError : End::Kind::kAnswer, &done); });
    }
  });
}

void InterceptedCall::add_observer(const std::shared_ptr<Observer>& observer) {
  auto* const entry = new Observing{observer, observing_.load()};
  while (!observing_.compare_exchange_weak(entry->next, entry)) {
  }
}

std::optional<double> InterceptedCall::seconds_left() const {
  if (timeout_.count() == 0) {
    return std::nullopt;
  }
  return std::chrono::duration<double>(started_ + timeout_ - std::chrono::steady_clock::now()).count();
}

void InterceptedCall::keep() {
  kept_ = true;  // set before the chain reads over_, because end() sets over_ before it reads kept_
  chain_->keep(shared_from_this());
}

void InterceptedCall::drop() {
  if (direction_ == Direction::kIncoming) {
    end(End::Kind::kDropped, nullptr);
  } else {
    keep();
  }
}

void InterceptedCall::run_out() {
  end(End::Kind::kTimeout, failed(std::make_exception_ptr(std::runtime_error(timeout_text(timeout_)))).get());
}

void InterceptedCall::shut_down() {
  const std::string text = "RPC to '" + peer() + "' failed: the RPC agent of this worker has been shut down";
  const FuturePtr error = direction_ == Direction::kOutgoing ? error_of(text, ErrorKind::kOther) : nullptr;
  end(End::Kind::kShutdown, error.get());
}

void InterceptedCall::end(End::Kind kind, JitFuture* answer) {
  if (over_.exchange(true)) {
    return;
  }
  if (kept_) {
    chain_->let_go(*this);
  }
  contained("in an interceptor at the end of a call", [&] { tell_observers(kind, answer); });
  contained("while delivering the answer of a call", [&] { finish(answer); });
}

void InterceptedCall::tell_observers(End::Kind kind, JitFuture* answer) {
  Observing* entry = observing_.exchange(nullptr);
  if (entry == nullptr) {
    return;
  }
  End end{kind, {}, 0};
  if (answer != nullptr && answer->hasError()) {
    end.text = answer->tryRetrieveErrorMessage();
  } else if (answer != nullptr) {
    end.bytes = bytes_of(*answer->constValue().toCustomClass<Message>());
  }
  while (entry != nullptr) {
    contained("in an interceptor at the end of a call", [&] { entry->observer->on_end(end); });
    delete std::exchange(entry, entry->next);
  }
}

}  // namespace rpc_backends
