#include "fault_way.h"

#include <torch/csrc/distributed/rpc/utils.h>

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

namespace rpc_backends {

namespace rpc = torch::distributed::rpc;
using rpc::RPCErrorType;

namespace {

// Seconds that what runs on the threads of this agent has to end.
constexpr double kEnding = 5.0;

c10::intrusive_ptr<rpc::Message> copy_of(const rpc::Message& message) {
  std::vector<char> payload = message.payload();
  std::vector<torch::Tensor> tensors = message.tensors();
  return c10::make_intrusive<rpc::Message>(std::move(payload), std::move(tensors), message.type(), message.id());
}

[[noreturn]] void end_process(int exit_code) {
  if (exit_code < 0) {
    ::kill(::getpid(), SIGKILL);
  }
  ::_exit(exit_code < 0 ? 137 : exit_code);
}

}  // namespace

// A request that meets faults, or whose answer may.
struct FaultCall {
  uint64_t id = 0;
  rpc::WorkerInfo to;
  c10::intrusive_ptr<rpc::Message> request;
  std::chrono::milliseconds timeout{0};  // 0 is never
  float inner_timeout = 0;
  rpc::DeviceMap device_map;
  FaultMessage message;
  Faults faults;
  bool answers = false;  // rules of links look at the answer

  FuturePtr future;
  std::atomic<bool> over{false};
  Scheduler::Key deadline;
  bool has_deadline = false;

  FaultCall(const rpc::WorkerInfo& receiver) : to(receiver) {}

  const Fault* find(FaultKind kind) const {
    const auto found =
        std::find_if(faults.begin(), faults.end(), [&](const Fault& fault) { return fault.rule->kind == kind; });
    return found == faults.end() ? nullptr : &*found;
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
};

FuturePtr FaultWay::send(const WorkerInfo& to, c10::intrusive_ptr<Message> message, float timeout_seconds,
                         std::chrono::milliseconds timeout, const DeviceMap& device_map) {
  Faults faults;
  bool answers = false;
  auto seen = rules.decide(*message, to.id_, to.name_, faults, answers);
  const uint64_t id = ++next_;
  if (seen && log.is_open()) {
    log.add_request(id, *seen, faults);
  }
  if (!seen || (faults.empty() && !answers)) {
    FuturePtr future = send_watched(to, std::move(message), timeout_seconds, device_map, seen ? id : 0);
    passed(to.id_);
    return future;
  }
  auto call = std::make_shared<FaultCall>(to);
  call->id = id;
  call->request = std::move(message);
  call->timeout = timeout;
  call->inner_timeout = timeout_seconds;
  call->device_map = device_map;
  call->message = std::move(*seen);
  call->faults = std::move(faults);
  call->answers = answers;
  call->future = c10::make_intrusive<JitFuture>(at::AnyClassType::get(), inner_->getDevices());
  begin(call);
  return call->future;
}

FuturePtr FaultWay::send_watched(const WorkerInfo& to, c10::intrusive_ptr<Message> message, float timeout_seconds,
                                 const DeviceMap& device_map, uint64_t id) {
  FuturePtr future = inner_->send(to, std::move(message), timeout_seconds, device_map);
  if (id != 0 && log.is_open()) {
    future->addCallback([self = shared_from_this(), id](JitFuture& answer) {
      if (answer.hasError()) {
        self->log.add_end(id, "error", answer.tryRetrieveErrorMessage(), {});
      } else {
        self->log.add_end(id, "answer", {}, {});
      }
    });
  }
  return future;
}

void FaultWay::begin(const FaultCallPtr& call) {
  if (const Fault* crash = call->find(FaultKind::kCrash)) {
    end_process(crash->rule->exit_code);  // the log has it
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    open_.emplace(call->id, call);
  }
  if (const Fault* failed = call->find(FaultKind::kFail)) {
    const FaultRule& rule = *failed->rule;
    fail(call,
         rpc::makeRPCError(rule.text.empty()
                               ? c10::str("Send attempt failed intentionally for ", type_name(call->message.type),
                                          " to '", call->to.name_, "' by the fault rule '", rule.name, "'")
                               : rule.text,
                           RPCErrorType::INTENTIONAL_FAILURE),
         "failed");
    return;
  }
  if (call->timeout.count() > 0) {
    // Held from here, and let go of by take(): a call that is over has no deadline.
    call->deadline = scheduler_->after(std::chrono::duration<double>(call->timeout).count(),
                                       [self = shared_from_this(), weak = std::weak_ptr<FaultCall>(call)] {
                                         if (const auto late = weak.lock()) {
                                           self->fail(late, timeout_text(late->timeout), "timeout");
                                         }
                                       });
    call->has_deadline = true;
  }
  if (call->find(FaultKind::kDrop) || call->find(FaultKind::kPartition)) {
    call->request.reset();
    return;
  }
  const double seconds = call->held();
  if (seconds > 0) {
    later(seconds, call, [self = shared_from_this(), call] { self->hold(call); });
  } else {
    hold(call);
  }
}

void FaultWay::hold(const FaultCallPtr& call) {
  const Fault* reorder = call->find(FaultKind::kReorder);
  if (!reorder) {
    transmit(call);
    return;
  }
  ++moving_;
  const auto to = call->to.id_;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto bound =
      scheduler_->after(reorder->rule->bound, [self = shared_from_this(), to, call] { self->release(to, call); });
  waiting_[to].push_back({call, reorder->rule->others, bound});
  ++waiting_now_;
}

void FaultWay::release(rpc::worker_id_t to, const FaultCallPtr& call) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& queue = waiting_[to];
    const auto found = std::find_if(queue.begin(), queue.end(), [&](const Waiting& one) { return one.call == call; });
    if (found == queue.end()) {
      return;
    }
    queue.erase(found);
    --waiting_now_;
  }
  transmit(call);
  moved();
}

void FaultWay::passed(rpc::worker_id_t to) {
  if (waiting_now_ == 0) {
    return;
  }
  std::vector<Waiting> free;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& queue = waiting_[to];
    for (auto one = queue.begin(); one != queue.end();) {
      if (--one->others > 0) {
        ++one;
        continue;
      }
      free.push_back(*one);
      one = queue.erase(one);
      --waiting_now_;
    }
  }
  for (const Waiting& one : free) {
    scheduler_->cancel(one.bound);
    scheduler_->post([self = shared_from_this(), call = one.call] {
      self->transmit(call);
      self->moved();
    });
  }
}

void FaultWay::transmit(const FaultCallPtr& call) {
  if (stopped_) {
    return;  // failed by stop()
  }
  if (log.is_open() && (call->held() > 0 || call->find(FaultKind::kReorder))) {
    log.add_sent(call->id);
  }
  const Fault* duplicate = call->find(FaultKind::kDuplicate);
  std::vector<c10::intrusive_ptr<Message>> copies;
  for (uint64_t i = 1; duplicate && i < duplicate->rule->copies; ++i) {
    copies.push_back(copy_of(*call->request));
  }
  copies.push_back(std::move(call->request));
  const bool held = call->find(FaultKind::kReorder) != nullptr;
  for (auto& message : copies) {
    FuturePtr answer;
    try {
      answer = inner_->send(call->to, std::move(message), call->inner_timeout, call->device_map);
    } catch (const std::exception& error) {
      fail(call, error.what(), "error");
      return;
    }
    if (!held) {
      passed(call->to.id_);
    }
    answer->addCallback([self = shared_from_this(), call](JitFuture& done) { self->answered(call, done); });
  }
}

void FaultWay::answered(const FaultCallPtr& call, JitFuture& answer) {
  if (call->over) {
    return;  // the answer to another copy was first, or it was too late
  }
  if (call->find(FaultKind::kReplyLost)) {
    return;
  }
  if (const Fault* replaced = call->find(FaultKind::kReplyFail)) {
    const FaultRule& rule = *replaced->rule;
    fail(call,
         rpc::makeRPCError(rule.text.empty()
                               ? c10::str("The answer to ", type_name(call->message.type), " from '", call->to.name_,
                                          "' was replaced by this error by the fault rule '", rule.name, "'")
                               : rule.text,
                           RPCErrorType::INTENTIONAL_FAILURE),
         "reply_failed");
    return;
  }
  Faults faults;
  if (call->answers) {
    const bool failed = answer.hasError();
    faults = rules.decide_answer(call->message, failed ? 0 : bytes_of(*answer.constValue().toCustomClass<Message>()));
  }
  double seconds = 0;
  for (const Fault& fault : faults) {
    if (fault.rule->kind == FaultKind::kPartition) {
      if (log.is_open()) {
        log.add_end(call->id, "answer_lost", {}, faults);
      }
      return;
    }
    seconds += fault.seconds;
  }
  for (const Fault& fault : call->faults) {
    seconds += fault.rule->kind == FaultKind::kReplyDelay ? fault.seconds : 0;
  }
  // Kept as a future: its callback brings the streams of its devices along.
  const auto kept = c10::intrusive_ptr<JitFuture>::reclaim_copy(&answer);
  if (seconds > 0) {
    later(seconds, call, [self = shared_from_this(), call, kept, faults] {
      kept->addCallback([&](JitFuture&) { self->complete(call, kept, faults); });
    });
  } else {
    complete(call, kept, faults);
  }
}

void FaultWay::complete(const FaultCallPtr& call, const FuturePtr& answer, const Faults& answer_faults) {
  if (!take(call)) {
    return;
  }
  if (answer->hasError()) {
    if (log.is_open()) {
      log.add_end(call->id, "error", answer->tryRetrieveErrorMessage(), answer_faults);
    }
    call->future->setError(answer->exception_ptr());
  } else {
    if (log.is_open()) {
      log.add_end(call->id, "answer", {}, answer_faults);
    }
    call->future->markCompleted(answer->constValue(), answer->storages());
  }
}

void FaultWay::fail(const FaultCallPtr& call, const std::string& error, const char* outcome,
                    const Faults& answer_faults) {
  if (!take(call)) {
    return;
  }
  if (log.is_open()) {
    log.add_end(call->id, outcome, error, answer_faults);
  }
  rpc_backends::fail(call->future, error);
}

bool FaultWay::take(const FaultCallPtr& call) {
  if (call->over.exchange(true)) {
    return false;
  }
  if (call->has_deadline) {
    scheduler_->cancel(call->deadline);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  open_.erase(call->id);
  settled_.notify_all();
  return true;
}

void FaultWay::later(double seconds, const FaultCallPtr& call, std::function<void()> job) {
  ++moving_;
  scheduler_->after(seconds, [self = shared_from_this(), job = std::move(job)] {
    job();
    self->moved();
  });
}

void FaultWay::moved() {
  std::lock_guard<std::mutex> lock(mutex_);
  --moving_;
  settled_.notify_all();
}

void FaultWay::settle() {
  rules.close();
  std::unique_lock<std::mutex> lock(mutex_);
  settled_.wait(lock, [this] {
    // What is lost and never times out stays; nobody can wait for that.
    return stopped_ || (moving_ == 0 && std::none_of(open_.begin(), open_.end(),
                                                     [](const auto& one) { return one.second->timeout.count() > 0; }));
  });
}

void FaultWay::stop() {
  if (stopped_.exchange(true)) {
    return;
  }
  rules.close();
  std::unordered_map<uint64_t, FaultCallPtr> open;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    open = open_;
    waiting_.clear();
    settled_.notify_all();
  }
  for (const auto& [id, call] : open) {
    fail(call, "RPC to '" + call->to.name_ + "' failed: the RPC agent of this worker has been shut down", "shutdown");
  }
  open.clear();
  scheduler_->stop(kEnding);
}

}  // namespace rpc_backends
