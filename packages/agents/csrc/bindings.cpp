// What Python sees of the agents.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "agent.h"
#include "capsule.h"
#include "intercepting_agent.h"
#include "log.h"
#include "python_transport.h"

namespace py = pybind11;

namespace rpc_backends {

namespace {

using torch::distributed::rpc::RpcAgent;
using Unlocked = py::call_guard<py::gil_scoped_release>;

// Calls `function`, which Python has given, from a thread of C++.
template <typename... Arguments>
std::function<void(Arguments...)> from_cpp(py::function function) {
  // Never let go of: the last reference could be dropped where there is no interpreter.
  auto* kept = new py::function(std::move(function));
  return [kept](Arguments... arguments) {
    if (Py_IsInitialized() == 0) {
      return;
    }
    py::gil_scoped_acquire gil;
    (*kept)(arguments...);
  };
}

std::shared_ptr<TransportAgent> make_agent(const std::string& name, int id, const py::object& transport,
                                           size_t num_worker_threads, double rpc_timeout, uint64_t max_message_bytes,
                                           uint64_t max_unanswered_bytes) {
  AgentOptions options;
  options.num_worker_threads = num_worker_threads;
  options.rpc_timeout = std::chrono::milliseconds(static_cast<int64_t>(rpc_timeout * 1000));
  options.max_message_bytes = max_message_bytes;
  options.max_unanswered_bytes = max_unanswered_bytes;
  return std::make_shared<TransportAgent>(name, id, take_transport(transport), options);
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  py::module_::import("torch.distributed.rpc");  // registers the base class
  bind_transports(module);

  py::class_<Traffic>(module, "Traffic")
      .def_readonly("sent", &Traffic::sent)
      .def_readonly("answered", &Traffic::answered)
      .def_readonly("received", &Traffic::received)
      .def_readonly("served", &Traffic::served);

  py::class_<TransportAgent, RpcAgent, std::shared_ptr<TransportAgent>>(module, "TransportAgent")
      .def(py::init(&make_agent), py::arg("name"), py::arg("worker_id"), py::arg("transport"), py::kw_only(),
           py::arg("num_worker_threads"), py::arg("rpc_timeout"), py::arg("max_message_bytes"),
           py::arg("max_unanswered_bytes"))
      .def("listen", &TransportAgent::listen, Unlocked())
      .def("learn", &TransportAgent::learn, Unlocked(), py::arg("worker_id"), py::arg("name"), py::arg("address"))
      .def("join", &TransportAgent::join, Unlocked(), py::arg("shutdown") = false, py::arg("timeout") = 0.0F)
      .def("shutdown", &TransportAgent::shutdown, Unlocked())
      .def("get_worker_info", [](const TransportAgent& self) { return self.RpcAgent::getWorkerInfo(); })
      .def("get_worker_info",
           [](const TransportAgent& self, const std::string& name) { return self.getWorkerInfo(name); }, Unlocked())
      .def("get_worker_info",
           [](const TransportAgent& self, int id) {
             return self.getWorkerInfo(static_cast<torch::distributed::rpc::worker_id_t>(id));
           },
           Unlocked())
      .def("get_worker_infos", &TransportAgent::getWorkerInfos, Unlocked())
      .def("add_member", [](TransportAgent& self, const std::string& name, int id) { self.members().add(name, id); })
      .def("remove_member", &TransportAgent::forget, Unlocked(), py::arg("worker_id"), py::arg("reason"))
      .def("on_unknown_member",
           [](TransportAgent& self, py::function refresh) { self.members().on_unknown(from_cpp<>(std::move(refresh))); })
      .def("on_lost",
           [](TransportAgent& self, py::function tell) {
             self.on_lost(from_cpp<int, const std::string&>(std::move(tell)));
           })
      .def("traffic", &TransportAgent::traffic);

  py::class_<InterceptingAgent, RpcAgent, std::shared_ptr<InterceptingAgent>>(module, "InterceptingAgent")
      .def(py::init<std::shared_ptr<RpcAgent>>(), py::arg("inner"))
      .def("add_interceptor",
           [](InterceptingAgent& self, const py::object& interceptor, const std::string& name, int order) {
             self.interceptors().add(take_capsule<Interceptor>(interceptor, "__rpc_interceptor__", kInterceptorCapsule,
                                                               "interceptor"),
                                     name, order);
           },
           py::arg("interceptor"), py::arg("name"), py::arg("order"))
      .def("settle", [](InterceptingAgent& self, double timeout) { self.interceptors().settle(timeout); },
           py::arg("timeout") = 0.0, Unlocked());

  module.def("send_warnings_to", [](py::function sink) {
    send_warnings_to(from_cpp<const std::string&>(std::move(sink)));
  });
}

}  // namespace rpc_backends
