#include "intercept/call_interceptor.h"

#include <set>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "python/capsule.h"
#include "python/for_python.h"
#include "python/python_state.h"
#include "rpc_backends_agents/python.h"

namespace py = pybind11;

namespace rpc_backends {

namespace {

// The most ended calls that wait for Python. Without a limit, a program that holds the GIL would fill the memory.
constexpr size_t kMaxEnded = 100'000;

// Torch itself calls these: when a group shuts down, and to learn which methods the value of an RRef has.
bool is_torchs_own_call(std::string_view function) {
  return function == "torch.distributed.rpc.api._gather_to_leader" ||
         function == "torch.distributed.rpc.api._broadcast_to_followers" ||
         function == "torch.distributed.rpc.api._rref_typeof_on_owner";
}

}  // namespace

Call::Call(const RequestHead& head)
    : direction(head.direction()),
      type(head.type()),
      peer_id(head.peer_id()),
      peer(head.peer()),
      worker(head.worker()),
      function(head.function()),
      timeout(head.timeout()),
      payload_bytes(head.payload_bytes()),
      tensors(head.tensors()),
      tensor_bytes(head.tensor_bytes()),
      begin(std::chrono::steady_clock::now()) {}

// Sees the end of one call.
class CallInterceptor::Watch final : public Observer {
 public:
  Watch(std::shared_ptr<Jobs> jobs, CallPtr call) : jobs_(std::move(jobs)), call_(std::move(call)) {}

  bool wants_answers() const noexcept override { return false; }

  void on_end(const End& end) override {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - call_->begin;
    {
      const std::lock_guard<std::mutex> lock(jobs_->mutex);
      if (jobs_->closed) {
        return;
      }
      if (jobs_->ended == kMaxEnded) {
        ++jobs_->unseen;
        return;
      }
      ++jobs_->ended;
      jobs_->queue.push_back({call_, nullptr, took.count(), end});
    }
    jobs_->changed.notify_one();
  }

 private:
  const std::shared_ptr<Jobs> jobs_;
  const CallPtr call_;
};

CallInterceptor::CallInterceptor(Decide on_outgoing, Decide on_incoming, Ended on_end)
    : decides_outgoing_(on_outgoing),
      decides_incoming_(on_incoming),
      observes_(on_end),
      on_outgoing_(std::move(on_outgoing)),
      on_incoming_(std::move(on_incoming)),
      on_end_(std::move(on_end)) {}

CallInterceptor::~CallInterceptor() {
  on_stop();
}

void CallInterceptor::on_start(const AgentInfo& /*agent*/) {
  thread_ = std::thread([self = shared_from_this()] { self->run(); });
}

void CallInterceptor::on_request(RequestPtr request) {
  const RequestHead& head = request->head();
  if (!calls_function(head.type()) || is_torchs_own_call(head.function())) {
    request->pass();
    return;
  }
  const auto call = std::make_shared<const Call>(head);
  if (observes_) {
    request->observe(std::make_shared<Watch>(jobs_, call));
  }
  if (decides(call->direction)) {
    const std::lock_guard<std::mutex> lock(jobs_->mutex);
    if (!jobs_->closed) {
      jobs_->queue.push_back({call, std::move(request), 0, {}});
      jobs_->changed.notify_one();
      return;
    }
  }
  request->pass();  // after the agent has stopped, this ends the call
}

void CallInterceptor::on_stop() {
  if (birthplace_.is_elsewhere()) {
    return;  // a forked child has no such thread, and its copies of locks may stay locked
  }
  {
    const std::lock_guard<std::mutex> lock(jobs_->mutex);
    jobs_->closed = true;
  }
  jobs_->changed.notify_all();
  if (!thread_.joinable()) {
    return;
  }
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();  // a method of the interceptor has shut the agent down
    return;
  }
  const WithoutGil waiting;
  thread_.join();
}

void CallInterceptor::run() {
  const PythonState state;
  PythonState::keep();
  for (;;) {
    Job job;
    {
      std::unique_lock<std::mutex> lock(jobs_->mutex);
      jobs_->changed.wait(lock, [this] { return jobs_->closed || !jobs_->queue.empty(); });
      if (jobs_->queue.empty()) {
        break;
      }
      job = std::move(jobs_->queue.front());
      jobs_->queue.pop_front();
      if (!job.request) {
        --jobs_->ended;
      }
    }
    contained("in an interceptor in Python", [&] { run(job); });
  }
  on_outgoing_ = on_incoming_ = nullptr;
  on_end_ = nullptr;
}

void CallInterceptor::run(Job& job) {
  if (!job.request) {
    on_end_(job.call, job.seconds, job.end);
    return;
  }
  const Decide& decide = job.call->direction == Direction::kOutgoing ? on_outgoing_ : on_incoming_;
  const std::string refusal = decide(job.call);
  if (refusal.empty()) {
    job.request->pass();
  } else {
    ++refused_;
    job.request->fail(refusal);
  }
}

Metrics CallInterceptor::metrics() const {
  const std::lock_guard<std::mutex> lock(jobs_->mutex);
  return {{"refused", std::to_string(refused_)},
          {"waiting", std::to_string(jobs_->queue.size())},
          {"unseen", std::to_string(jobs_->unseen)}};
}

namespace {

std::string describe(const End& end) {
  switch (end.kind) {
    case End::Kind::kTimeout:
      return "timed out in an interceptor";
    case End::Kind::kShutdown:
      return "the agent was shut down";
    case End::Kind::kDropped:
      return "dropped by an interceptor";
    default:
      return std::string(end.text);
  }
}

// A Python function for the interceptor's thread; empty for None. `call` calls it with the GIL.
template <typename Function, typename Call>
Function for_thread(const py::object& function, Call call) {
  if (function.is_none()) {
    return nullptr;
  }
  return [held = shared(function), call](auto&&... arguments) {
    const py::gil_scoped_acquire gil;
    return call(*held, arguments...);
  };
}

}  // namespace

void bind_call_interceptor(py::module_& module) {
  py::class_<Call, std::shared_ptr<Call>>(module, "Call", py::module_local())
      .def_property_readonly(
          "direction",
          [](const Call& call) { return call.direction == Direction::kOutgoing ? "outgoing" : "incoming"; })
      .def_property_readonly("type", [](const Call& call) { return type_name(call.type); })
      .def_property_readonly("timeout",
                             [](const Call& call) { return static_cast<double>(call.timeout.count()) / 1000; })
      .def_property_readonly("peer", [](const Call& call) { return for_python(call.peer); })
      .def_property_readonly("worker", [](const Call& call) { return for_python(call.worker); })
      .def_property_readonly("function", [](const Call& call) { return for_python(call.function); })
      .def_readonly("peer_id", &Call::peer_id)
      .def_readonly("payload_bytes", &Call::payload_bytes)
      .def_readonly("tensors", &Call::tensors)
      .def_readonly("tensor_bytes", &Call::tensor_bytes);

  py::class_<CallInterceptor, std::shared_ptr<CallInterceptor>>(module, "NativeCallInterceptor", py::module_local())
      .def(py::init([](const py::object& on_outgoing, const py::object& on_incoming, const py::object& on_end) {
             const auto decide = [](const py::object& function, const CallPtr& call) {
               return function(std::const_pointer_cast<Call>(call)).cast<std::string>();
             };
             const auto tell = [](const py::object& function, const CallPtr& call, double seconds, const End& end) {
               const bool is_error = end.kind != End::Kind::kAnswer;
               function(std::const_pointer_cast<Call>(call), seconds,
                        is_error ? for_python(describe(end)) : py::none());
             };
             return std::make_shared<CallInterceptor>(for_thread<CallInterceptor::Decide>(on_outgoing, decide),
                                                      for_thread<CallInterceptor::Decide>(on_incoming, decide),
                                                      for_thread<CallInterceptor::Ended>(on_end, tell));
           }),
           py::kw_only(), py::arg("on_outgoing"), py::arg("on_incoming"), py::arg("on_end"))
      .def("stop", &CallInterceptor::on_stop, py::call_guard<py::gil_scoped_release>())
      .def("__rpc_interceptor__", [](const std::shared_ptr<CallInterceptor>& self) {
        return give_capsule<Interceptor>(self, kInterceptorCapsule);
      });
}

}  // namespace rpc_backends
