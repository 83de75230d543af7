// The Python module of the agents.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "agent/agent.h"
#include "agent/request_policy.h"
#include "agent/thread_pool.h"
#include "base/log.h"
#include "front/intercepting_agent.h"
#include "inspect/pickle_limits.h"
#include "intercept/call_interceptor.h"
#include "python/capsule.h"
#include "python/for_python.h"
#include "record/recorder.h"
#include "record/telemetry.h"
#include "rpc/own_rrefs.h"
#include "transport/python_transport.h"

namespace py = pybind11;

namespace rpc_backends {

namespace {

// How long a process that ends without rpc.shutdown() waits for the requests that it handles, in seconds.
constexpr double kExitTimeout = 1.0;

using torch::distributed::rpc::RpcAgent;
using Unlocked = py::call_guard<py::gil_scoped_release>;

// Wraps a Python function for calls from C++ threads. Exceptions go to `on_error`, which is called with the GIL.
template <typename... Arguments>
std::function<void(Arguments...)> from_cpp(py::function function,
                                           std::function<void(py::error_already_set&)> on_error) {
  // Never released: the last reference could go away after the interpreter has ended.
  auto* kept = new py::function(std::move(function));
  return [kept, on_error = std::move(on_error)](Arguments... arguments) {
    if (Py_IsInitialized() == 0) {
      return;
    }
    py::gil_scoped_acquire gil;
    try {
      (*kept)(for_python(arguments)...);
    } catch (py::error_already_set& error) {
      on_error(error);
    }
  };
}

// Wraps a callback; exceptions are logged, because no caller could handle them.
template <typename... Arguments>
std::function<void(Arguments...)> callback(py::function function, const char* name) {
  return from_cpp<Arguments...>(std::move(function), [name](py::error_already_set& /*error*/) { note_thrown(name); });
}

// In a forked child, an agent is neither stopped nor destroyed: its threads do not exist there, and the locks that they
// held stay locked.
template <typename Agent>
std::shared_ptr<Agent> deleted_unless_forked(Agent* agent) {
  return std::shared_ptr<Agent>(agent, [](Agent* unused) {
    if (!unused->is_forked()) {
      delete unused;
    }
  });
}

std::shared_ptr<TransportAgent> make_agent(const std::string& name, int id, const py::object& transport,
                                           size_t num_worker_threads, double rpc_timeout, uint64_t max_message_bytes,
                                           uint64_t max_unanswered_bytes) {
  const AgentOptions options{.num_worker_threads = num_worker_threads,
                             .rpc_timeout = std::chrono::milliseconds(static_cast<int64_t>(rpc_timeout * 1000)),
                             .max_message_bytes = max_message_bytes,
                             .max_unanswered_bytes = max_unanswered_bytes};
  return deleted_unless_forked(new TransportAgent(name, id, take_transport(transport), options));
}

// A device map as pairs of texts, which need no converter for devices.
using DevicePairs = std::vector<std::pair<std::string, std::string>>;

DeviceMap device_map(const DevicePairs& pairs) {
  DeviceMap map;
  for (const auto& [mine, theirs] : pairs) {
    map.emplace(c10::Device(mine), c10::Device(theirs));
  }
  return map;
}

void set_devices(TransportAgent& agent, const std::unordered_map<std::string, DevicePairs>& maps,
                 const std::unordered_map<int, DevicePairs>& reverse_maps, const std::vector<std::string>& devices) {
  DeviceMaps device_maps;
  for (const auto& [callee, pairs] : maps) {
    device_maps.requests.emplace(callee, device_map(pairs));
  }
  for (const auto& [caller, pairs] : reverse_maps) {
    device_maps.answers.emplace(caller, device_map(pairs));
  }
  for (const std::string& device : devices) {
    device_maps.devices.emplace_back(device);
  }
  agent.set_devices(std::move(device_maps));
}

// Whether an interceptor is useless where calls that arrive are not shown. One in C++ says only what it wants to see.
bool decides_incoming(const Interceptor& interceptor) {
  if (const auto* const in_python = dynamic_cast<const CallInterceptor*>(&interceptor)) {
    return in_python->decides(Direction::kIncoming);
  }
  return interceptor.wants(Direction::kIncoming) && !interceptor.wants(Direction::kOutgoing);
}

}  // namespace

void bind_policy(py::module_& module) {
  using Rule = RequestPolicy::Rule;
  py::class_<Rule>(module, "RequestRule", py::module_local())
      .def(py::init([](std::vector<std::string> peers, std::vector<std::string> functions,
                       std::vector<std::string> conditional, std::vector<std::string> operators,
                       std::vector<std::string> scripts, bool fetch, bool autograd, bool profiling) {
             return Rule{std::move(peers),
                         std::move(functions),
                         std::move(conditional),
                         std::move(operators),
                         std::move(scripts),
                         fetch,
                         autograd,
                         profiling};
           }),
           py::kw_only(), py::arg("peers"), py::arg("functions"), py::arg("conditional"), py::arg("operators"),
           py::arg("scripts"), py::arg("fetch"), py::arg("autograd"), py::arg("profiling"));
  py::class_<RequestPolicy, std::shared_ptr<RequestPolicy>>(module, "RequestPolicy", py::module_local())
      .def(py::init([](const std::vector<Rule>& rules, std::string worker, bool refuses, bool learns, int log,
                       size_t depth, uint64_t bytes, uint64_t keys) {
             return std::make_shared<RequestPolicy>(rules, std::move(worker), refuses, learns, log,
                                                    PickleLimits{depth, bytes, keys});
           }),
           py::arg("rules"), py::kw_only(), py::arg("worker"), py::arg("refuses"), py::arg("learns"), py::arg("log"),
           py::arg("depth") = PickleLimits().depth, py::arg("bytes") = PickleLimits().bytes,
           py::arg("keys") = PickleLimits().keys)
      .def("rules_for", &RequestPolicy::rules_for, py::arg("peer"))
      .def("pickle_problem", &RequestPolicy::pickle_problem, py::arg("pickle"))
      .def("is_decided_call", &RequestPolicy::is_decided_call, py::arg("peer"), py::arg("pickle"))
      // Whether nothing is left to decide about a message that this thread unpickles, and the caller if it is a call.
      .def("admit",
           [](RequestPolicy& self, std::string_view pickle) {
             const auto caller = ServedRequest::take();
             const bool is_decided =
                 caller ? !caller->empty() && self.is_decided_call(*caller, pickle) : self.is_decided_result(pickle);
             return std::pair(is_decided, caller);
           })
      .def_property_readonly("refused", &RequestPolicy::refused);
  module.def("take_caller", &ServedRequest::take);
  module.def("keep_audit_entries", [] { AuditEntries::of_process().keep(); });
  module.def(
      "add_audit_entry", [](const std::string& entry) { AuditEntries::of_process().add(entry); }, py::arg("entry"));
  module.def("take_audit_entries", [] {
    py::list entries;
    for (const std::string& entry : AuditEntries::of_process().take()) {
      entries.append(for_python(entry));
    }
    return entries;
  });
}

PYBIND11_MODULE(_C, module) {
  py::module_::import("torch.distributed.rpc");  // registers the base class
  py::module_::import("rpc_backends_core.spi")
      .attr("at_exit")(py::cpp_function([] { ThreadPool::stop_all(kExitTimeout); }, Unlocked()));
  limit_own_to_here();
  bind_transports(module);
  bind_call_interceptor(module);
  bind_recorder(module);
  bind_telemetry(module);
  bind_policy(module);

  py::class_<Traffic>(module, "Traffic")
      .def_readonly("sent", &Traffic::sent)
      .def_readonly("answered", &Traffic::answered)
      .def_readonly("received", &Traffic::received)
      .def_readonly("served", &Traffic::served)
      .def_readonly("pending", &Traffic::pending);

  py::class_<TransportAgent, RpcAgent, std::shared_ptr<TransportAgent>>(module, "TransportAgent")
      .def(py::init(&make_agent), py::arg("name"), py::arg("worker_id"), py::arg("transport"), py::kw_only(),
           py::arg("num_worker_threads"), py::arg("rpc_timeout"), py::arg("max_message_bytes"),
           py::arg("max_unanswered_bytes"))
      .def("listen", &TransportAgent::listen, Unlocked())
      .def("learn", &TransportAgent::learn, Unlocked(), py::arg("worker_id"), py::arg("name"), py::arg("address"))
      .def("join", &TransportAgent::join, Unlocked(), py::arg("shutdown") = false, py::arg("timeout") = 0.0F)
      .def(
          "finish",
          [](TransportAgent& self, float timeout, float interval, py::function ask) {
            const auto call = callback<>(std::move(ask), "while asking the callers of futures");
            const py::gil_scoped_release unlocked;
            self.finish(timeout, interval, call);
          },
          py::arg("timeout"), py::arg("interval"), py::arg("ask"))
      .def("callers_of_futures", &TransportAgent::callers_of_futures, Unlocked())
      .def("note_not_waiting", &TransportAgent::note_not_waiting, Unlocked(), py::arg("worker_id"))
      .def("calls_to", &TransportAgent::calls_to, Unlocked(), py::arg("worker_id"))
      .def(
          "shutdown",
          [](TransportAgent& self) {
            if (!self.is_forked()) {
              self.shutdown();
            }
          },
          Unlocked())
      .def("get_worker_info", [](const TransportAgent& self) { return self.RpcAgent::getWorkerInfo(); })
      .def(
          "get_worker_info",
          [](const TransportAgent& self, const std::string& name) { return self.getWorkerInfo(name); }, Unlocked())
      .def(
          "get_worker_info",
          [](const TransportAgent& self, int id) {
            return self.getWorkerInfo(static_cast<torch::distributed::rpc::worker_id_t>(id));
          },
          Unlocked())
      .def("get_worker_infos", &TransportAgent::getWorkerInfos, Unlocked())
      .def("add_member", [](TransportAgent& self, const std::string& name, int id) { self.members().add(name, id); })
      .def("remove_member", &TransportAgent::forget, Unlocked(), py::arg("worker_id"), py::arg("reason"))
      .def("on_unknown_member",
           [](TransportAgent& self, py::function refresh) {
             self.members().on_unknown(callback<>(std::move(refresh), "while looking up an unknown worker"));
           })
      .def("on_lost",
           [](TransportAgent& self, py::function tell) {
             self.on_lost(callback<int, const std::string&>(std::move(tell), "while handling a lost worker"));
           })
      .def("set_devices", &set_devices, py::arg("maps"), py::arg("reverse_maps"), py::arg("devices"))
      .def("set_policy", &TransportAgent::set_policy, py::arg("policy"))
      .def_property_readonly("num_worker_threads", &TransportAgent::num_worker_threads)
      .def("traffic", &TransportAgent::traffic)
      .def("answering_worker", &TransportAgent::answering_worker);

  py::class_<InterceptingAgent, RpcAgent, std::shared_ptr<InterceptingAgent>>(module, "InterceptingAgent")
      .def(py::init([](std::shared_ptr<RpcAgent> inner) {
             return deleted_unless_forked(new InterceptingAgent(std::move(inner)));
           }),
           py::arg("inner"))
      .def(
          "shutdown",
          [](InterceptingAgent& self) {
            if (!self.is_forked()) {
              self.shutdown();
            }
          },
          Unlocked())
      .def(
          "add_interceptor",
          [](InterceptingAgent& self, const py::object& interceptor, const std::string& name, int order) {
            auto native =
                take_capsule<Interceptor>(interceptor, "__rpc_interceptor__", kInterceptorCapsule, "interceptor");
            if (!self.shows_incoming() && decides_incoming(*native)) {
              throw std::runtime_error(
                  "the interceptor '" + name +
                  "' decides calls that arrive, and this backend's agent does not show them "
                  "(torch's TENSORPIPE does not), so every call would pass. Use a backend of rpc-backends-agents, such "
                  "as ZEROMQ or UCX, or decide calls where they are made (on_outgoing, Direction::kOutgoing).");
            }
            self.interceptors().add(std::move(native), name, order);
          },
          py::arg("interceptor"), py::arg("name"), py::arg("order"))
      .def("answering_worker", &InterceptingAgent::answering_worker)
      .def("record_calls", &InterceptingAgent::record, py::arg("recorder"))
      .def("report_calls", &InterceptingAgent::report, py::arg("telemetry"))
      .def(
          "settle", [](InterceptingAgent& self, double timeout) { self.interceptors().settle(timeout); },
          py::arg("timeout") = 0.0, Unlocked());

  module.def("send_warnings_to", [](py::function sink) {
    send_warnings_to(from_cpp<const std::string&>(std::move(sink), [](py::error_already_set& error) {
      error.discard_as_unraisable("the function that logs the agents' warnings");
    }));
  });
}

}  // namespace rpc_backends
