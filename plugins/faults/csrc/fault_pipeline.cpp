#include "fault_pipeline.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <utility>
#include <vector>

#include "process_faults.h"
#include "rpc_backends_agents/tensor_values.h"

namespace rpc_backends {

namespace {

[[noreturn]] void end_process(int exit_code) {
  if (exit_code < 0) {
    ::kill(::getpid(), SIGKILL);
  }
  ::_exit(exit_code < 0 ? 137 : exit_code);
}

// Stops all threads of this process for `seconds`. A child continues it, because a stopped process cannot do that
// itself. The child has no exit signal, so that a program that waits for its own children does not notice it.
void stop_process(double seconds) {
  const pid_t self = ::getpid();
  timespec left{};
  left.tv_sec = static_cast<time_t>(seconds);
  left.tv_nsec = static_cast<long>((seconds - static_cast<double>(left.tv_sec)) * 1e9);
  const auto child = static_cast<pid_t>(::syscall(SYS_clone, 0, 0, 0, 0, 0));
  if (child == 0) {  // only system calls here: other threads may have held any lock
#ifdef SYS_close_range
    ::syscall(SYS_close_range, 0, ~0U, 0);  // it must not keep the connections of this process open
#endif
    ::kill(self, SIGSTOP);
    while (::nanosleep(&left, &left) != 0) {
    }
    if (::getppid() == self) {
      ::kill(self, SIGCONT);
    }
    ::_exit(0);
  }
  while (child > 0 && ::waitpid(child, nullptr, __WCLONE) < 0 && errno == EINTR) {
  }
}

const char* outcome_of(End::Kind kind) {
  switch (kind) {
    case End::Kind::kAnswer:
      return "answer";
    case End::Kind::kTimeout:
      return "timeout";
    case End::Kind::kShutdown:
      return "shutdown";
    default:
      return "error";
  }
}

// The error text of a fault: the text of its rule, or a default.
std::string text_of(const FaultRule& rule, const std::string& begin, const std::string& end) {
  return rule.text.empty() ? begin + end + " by the fault rule '" + rule.name + "'" : rule.text;
}

}  // namespace

// A call without faults that a held request may be waiting for.
class OvertakingCall final : public Observer {
 public:
  OvertakingCall(std::shared_ptr<FaultPipeline> pipeline, int peer, uint64_t id)
      : pipeline_(std::move(pipeline)), peer_(peer), id_(id) {}
  void on_end(const End& /*end*/) override { pipeline_->ended(peer_, id_); }

 private:
  const std::shared_ptr<FaultPipeline> pipeline_;
  const int peer_;
  const uint64_t id_;
};

// A call that has faults, or whose end is logged.
class FaultCall final : public Observer, public std::enable_shared_from_this<FaultCall> {
 public:
  FaultCall(std::shared_ptr<FaultPipeline> pipeline, uint64_t id, const RequestHead& head, FaultMessage message,
            Faults faults, bool answers)
      : id(id),
        peer_id(head.peer_id()),
        peer(head.peer()),
        message(std::move(message)),
        faults(std::move(faults)),
        pipeline_(std::move(pipeline)),
        answers_(answers) {}

  void on_answer(AnswerPtr answer) override;
  void on_end(const End& end) override;

  // Sets the outcome to log if the call ends with an error.
  void set_outcome(const char* outcome) { outcome_ = outcome; }

  const Fault* find(FaultKind kind) const {
    const auto first =
        std::find_if(faults.begin(), faults.end(), [&](const Fault& fault) { return fault.rule->kind == kind; });
    return first == faults.end() ? nullptr : &*first;
  }

  double held() const {
    double seconds = 0;
    for (const Fault& fault : faults) {
      const FaultKind kind = fault.rule->kind;
      if (kind == FaultKind::kDelay || kind == FaultKind::kBandwidth || kind == FaultKind::kPause) {
        seconds += fault.seconds;
      }
    }
    return seconds;
  }

  const uint64_t id;
  const int peer_id;
  const std::string peer;
  const FaultMessage message;
  const Faults faults;

 private:
  void pass(const AnswerPtr& answer, const Faults& answer_faults);

  const std::shared_ptr<FaultPipeline> pipeline_;
  const bool answers_;  // whether rules also decide about the answer
  std::atomic<const char*> outcome_{nullptr};
  std::atomic<bool> answered_{false};
  Faults answer_faults_;  // of the answer that was passed on; written by the thread that set `answered_`
};

// Corrupts a request or an answer; the agents' classes have the interface beside that of the argument.
template <typename Message>
void corrupt(Message& target, const FaultRules& rules, const FaultCall& call, FaultKind kind) {
  auto* const values = dynamic_cast<TensorValues*>(&target);
  for (const Fault& fault : call.faults) {
    if (fault.rule->kind != kind) {
      continue;
    }
    if (values == nullptr) {
      static std::atomic<bool> said{false};
      if (!said.exchange(true)) {
        std::fputs("RPC faults: the installed rpc-backends-agents is too old to corrupt tensors.\n", stderr);
      }
      return;
    }
    const auto [element, bit] = rules.place_of(*fault.rule, call.message);
    values->flip_bit(element, bit);
  }
}

void FaultCall::on_answer(AnswerPtr answer) {
  if (find(FaultKind::kReplyLost)) {
    answer->drop();
    return;
  }
  if (const Fault* replaced = find(FaultKind::kReplyFail)) {
    set_outcome("reply_failed");
    answer->fail(text_of(*replaced->rule, std::string("The reply to ") + type_name(message.type) + " from '" + peer,
                         "' was replaced with this error"),
                 ErrorKind::kIntentional);
    return;
  }
  Faults answer_faults;
  if (answers_) {
    answer_faults = pipeline_->rules.decide_answer(message, answer->bytes());
    pipeline_->report_replay();
  }
  double seconds = 0;
  for (const Fault& fault : answer_faults) {
    if (fault.rule->kind == FaultKind::kPartition) {
      pipeline_->log.add_end(id, "answer_lost", {}, answer_faults);
      answer->drop();
      return;
    }
    seconds += fault.seconds;
  }
  for (const Fault& fault : faults) {
    seconds += fault.rule->kind == FaultKind::kReplyDelay ? fault.seconds : 0;
  }
  if (seconds > 0) {
    pipeline_->later(seconds,
                     [self = shared_from_this(), answer, answer_faults] { self->pass(answer, answer_faults); });
  } else {
    pass(answer, answer_faults);
  }
}

void FaultCall::pass(const AnswerPtr& answer, const Faults& answer_faults) {
  if (answered_.exchange(true)) {
    answer->drop();  // the answer to another copy of the request came first
    return;
  }
  corrupt(*answer, pipeline_->rules, *this, FaultKind::kReplyCorrupt);
  answer_faults_ = answer_faults;
  answer->pass();
}

void FaultCall::on_end(const End& end) {
  const bool by_answer = end.kind == End::Kind::kAnswer || end.kind == End::Kind::kError;
  const char* const outcome = end.kind == End::Kind::kError && outcome_ ? outcome_.load() : outcome_of(end.kind);
  pipeline_->log.add_end(id, outcome, end.text, by_answer ? answer_faults_ : Faults());
  pipeline_->ended(peer_id, id);
}

void FaultPipeline::on_start(const AgentInfo& agent) {
  scheduler_ = agent.scheduler;
  rules.start();
  if (rules.is_replaying()) {
    check_replay();
  }
}

void FaultPipeline::check_replay() {
  report_replay();
  scheduler_->after(rules.stall_timeout() / 4, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      self->check_replay();
    }
  });
}

void FaultPipeline::report_replay() {
  if (!rules.is_replaying()) {
    return;
  }
  // Python's logging could block here: this thread may hold torch's locks, and the program may hold the GIL for ever.
  if (const auto status = rules.replay_status()) {
    std::fprintf(stderr, "RPC faults: the replay on RPC worker '%s' %s.\n", worker_.c_str(), status->c_str());
    log.add_replay_status(*status);
  }
}

void FaultPipeline::on_request(RequestPtr request) {
  const RequestHead& head = request->head();
  const int peer = head.peer_id();
  Faults faults;
  bool answers = false;
  auto seen = rules.decide(head, faults, answers);
  const uint64_t id = ++next_;
  if (seen) {
    log.add_request(id, *seen, faults);
    report_replay();
  }
  const bool meets_none = faults.empty() && !answers;
  if (!seen || (meets_none && !log.is_open())) {
    if (waiting_now_ > 0) {
      request->observe(std::make_shared<OvertakingCall>(shared_from_this(), peer, id));
    }
    request->pass();
    return;
  }
  const auto call =
      std::make_shared<FaultCall>(shared_from_this(), id, head, std::move(*seen), std::move(faults), answers);
  if (const Fault* crash = call->find(FaultKind::kCrash)) {
    end_process(crash->rule->exit_code);  // the fault is already in the log
  }
  if (const Fault* stop = call->find(FaultKind::kStop)) {
    stop_process(stop->seconds);
  }
  for (const Fault& fault : call->faults) {
    apply_to_process(fault);
  }
  corrupt(*request, rules, *call, FaultKind::kCorrupt);
  request->observe(call);
  if (const Fault* failed = call->find(FaultKind::kFail)) {
    call->set_outcome("failed");
    request->fail(text_of(*failed->rule,
                          std::string("Send attempt failed intentionally for ") + type_name(call->message.type) +
                              " to '" + call->peer,
                          "'"),
                  ErrorKind::kIntentional);
    return;
  }
  if (call->find(FaultKind::kDrop) || call->find(FaultKind::kPartition)) {
    request->drop();
    return;
  }
  const double seconds = call->held();
  if (seconds > 0) {
    later(seconds, [self = shared_from_this(), call, request] { self->hold(call, request); });
  } else {
    hold(call, request);
  }
}

void FaultPipeline::apply_to_process(const Fault& fault) {
  const FaultRule& rule = *fault.rule;
  switch (rule.kind) {
    case FaultKind::kMemory:
      if (!limit_memory(rule.memory, std::min(fault.seconds, kMostSeconds))) {
        std::fprintf(stderr, "RPC faults: the memory of RPC worker '%s' cannot be limited here.\n", worker_.c_str());
      }
      break;
    case FaultKind::kStore:
      hold_stores(fault.seconds, rule.each);
      break;
    case FaultKind::kClock:
      if (!move_clock(rule.by)) {
        std::fprintf(stderr, "RPC faults: the clock of RPC worker '%s' cannot be moved here.\n", worker_.c_str());
      }
      break;
    default:
      break;
  }
}

void FaultPipeline::hold(const FaultCallPtr& call, const RequestPtr& request) {
  const Fault* reorder = call->find(FaultKind::kReorder);
  if (!reorder) {
    transmit(*call, request);
    return;
  }
  const int peer = call->peer_id;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& queue = waiting_[peer];
    // Only one request per peer waits: the requests after it are the ones that must overtake it.
    if (queue.empty() && !stopped_ && !rules.is_closed()) {
      ++held_;
      const auto bound = scheduler_->after(
          reorder->rule->bound, [self = shared_from_this(), peer, request] { self->release(peer, request); });
      queue.push_back({call, request, reorder->rule->others, bound});
      ++waiting_now_;
      return;
    }
  }
  transmit(*call, request);
}

void FaultPipeline::release(int peer, const RequestPtr& request) {
  FaultCallPtr call;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& queue = waiting_[peer];
    const auto waiting =
        std::find_if(queue.begin(), queue.end(), [&](const Waiting& held) { return held.request == request; });
    if (waiting == queue.end()) {
      return;
    }
    call = waiting->call;
    queue.erase(waiting);
    --waiting_now_;
  }
  transmit(*call, request);
  --held_;
}

void FaultPipeline::ended(int peer, uint64_t id) {
  if (waiting_now_ == 0) {
    return;
  }
  std::vector<Waiting> free;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& queue = waiting_[peer];
    for (auto held = queue.begin(); held != queue.end();) {
      if (held->call->id >= id || --held->others > 0) {
        ++held;
        continue;
      }
      free.push_back(*held);
      held = queue.erase(held);
      --waiting_now_;
    }
  }
  send_elsewhere(free);
}

void FaultPipeline::send_elsewhere(const std::vector<Waiting>& free) {
  for (const Waiting& held : free) {
    scheduler_->cancel(held.bound);
    scheduler_->post([self = shared_from_this(), call = held.call, request = held.request] {
      self->transmit(*call, request);
      --self->held_;
    });
  }
}

void FaultPipeline::transmit(const FaultCall& call, const RequestPtr& request) {
  if (call.held() > 0 || call.find(FaultKind::kReorder)) {
    log.add_sent(call.id);
  }
  const Fault* duplicate = call.find(FaultKind::kDuplicate);
  request->repeat(duplicate ? duplicate->rule->copies : 1);
}

void FaultPipeline::later(double seconds, std::function<void()> job) {
  ++held_;
  scheduler_->after(std::min(seconds, kMostSeconds), [self = shared_from_this(), job = std::move(job)] {
    job();
    --self->held_;
  });
}

void FaultPipeline::on_settle() {
  rules.close();
  end_process_faults();
  std::vector<Waiting> free;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [peer, queue] : waiting_) {
      free.insert(free.end(), queue.begin(), queue.end());
      queue.clear();
    }
    waiting_now_ = 0;
  }
  send_elsewhere(free);
}

void FaultPipeline::on_stop() {
  rules.close();
  end_process_faults();
  std::map<int, std::list<Waiting>> dropped;  // destroyed after the lock is released
  std::lock_guard<std::mutex> lock(mutex_);
  stopped_ = true;
  dropped.swap(waiting_);
  waiting_now_ = 0;
}

Metrics FaultPipeline::metrics() const {
  auto metrics = rules.metrics();
  if (!metrics.empty()) {
    metrics["held"] = std::to_string(held_);
  }
  const uint64_t lost = log.failure().first;
  if (lost > 0) {
    metrics["log_failures"] = std::to_string(lost);
  }
  return metrics;
}

}  // namespace rpc_backends
