// The Python bindings of the transport; _native.pyi documents them. An agent uses the C++ transport directly,
// through its capsule, so messages need no GIL.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <optional>

#include "rpc_backends_agents/openssl/python.h"
#include "rpc_backends_agents/python.h"
#include "ucp.h"
#include "ucx_transport.h"

namespace py = pybind11;

namespace rpc_backends::ucx {

namespace {

using PythonTransport = ClosedAtExit<UcxTransport>;

Clock::duration seconds(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(value));
}

std::shared_ptr<PythonTransport> make(const std::vector<std::pair<std::string, std::string>>& config,
                                      uint64_t max_message, double poll_time, double handshake_timeout,
                                      uint64_t rendezvous, const std::map<std::string, std::string>& device_memory,
                                      const std::shared_ptr<Certificates>& certificates,
                                      const py::object& on_unknown_proof, const py::object& on_refused) {
  Settings settings;
  settings.config = config;
  settings.max_message = max_message;
  settings.poll_time = seconds(poll_time);
  settings.handshake_timeout = seconds(handshake_timeout);
  settings.rendezvous = rendezvous;
  settings.device_memory = device_memory;
  settings.certificates = certificates;
  auto on_unknown = unknown_key_callback(on_unknown_proof);
  auto on_refusal = refused_callback(on_refused);
  const py::gil_scoped_release release;
  return std::make_shared<PythonTransport>(settings, std::move(on_unknown), std::move(on_refusal));
}

wire::Proof proof_of(const py::bytes& bytes) {
  const std::string text = bytes;
  wire::Proof proof{};
  if (text.size() != proof.size()) {
    throw TransportError("a proof must be " + std::to_string(proof.size()) + " bytes");
  }
  std::memcpy(proof.data(), text.data(), proof.size());
  return proof;
}

void start(PythonTransport& transport, int self, const py::bytes& connection_key) {
  const std::string text = connection_key;
  ConnectionKey::Bytes key{};
  if (text.size() != sizeof key) {
    throw TransportError("a connection key must be " + std::to_string(sizeof key) + " bytes");
  }
  std::memcpy(key.data(), text.data(), sizeof key);
  const py::gil_scoped_release release;
  transport.start(self, key);
}

void learn(PythonTransport& transport, int peer, const py::bytes& address, const py::bytes& our_proof,
           const py::bytes& their_proof, std::pair<int, uint64_t> process, uint64_t max_message,
           const std::string& identity, const std::pair<py::bytes, py::bytes>& statements) {
  Credentials credentials;
  credentials.our_proof = proof_of(our_proof);
  credentials.their_proof = proof_of(their_proof);
  credentials.process = {process.first, process.second};
  credentials.max_message = max_message;
  credentials.identity = identity;
  credentials.our_statement = statements.first;
  credentials.their_statement = statements.second;
  const std::string copied = address;
  const py::gil_scoped_release release;
  transport.learn_address(peer, copied, credentials);
}

void send_buffers(PythonTransport& transport, int peer, const py::iterable& buffers, bool reply,
                  const std::optional<std::string>& device) {
  const auto type = std::make_shared<std::string>(device.value_or(""));
  const Memory memory{device ? type->c_str() : nullptr, 0};
  Parts parts;
  for (const py::handle buffer : buffers) {
    const auto bytes = py::reinterpret_steal<py::bytes>(PyBytes_FromObject(buffer.ptr()));
    if (!bytes) {
      throw py::error_already_set();
    }
    auto copied = std::make_shared<std::pair<std::string, std::shared_ptr<std::string>>>(bytes, type);
    parts.push_back({copied->first.data(), copied->first.size(), copied, memory, memory});
  }
  const py::gil_scoped_release release;
  transport.send(peer, std::move(parts), reply);
}

}  // namespace

}  // namespace rpc_backends::ucx

PYBIND11_MODULE(_native, module) {
  using namespace rpc_backends;
  using namespace rpc_backends::ucx;

  bind_transport<UcxTransport>(module)
      .def(py::init(&make), py::kw_only(), py::arg("config"), py::arg("max_message"), py::arg("poll_time"),
           py::arg("handshake_timeout"), py::arg("rendezvous"), py::arg("device_memory"),
           py::arg("certificates") = py::none(), py::arg("on_unknown_proof") = py::none(),
           py::arg("on_refused") = py::none())
      .def("address", [](const PythonTransport& self) { return py::bytes(self.address()); })
      .def("start", &start, py::arg("self_id"), py::arg("connection_key"))
      .def("learn", &learn, py::arg("peer"), py::arg("address"), py::arg("our_proof"), py::arg("their_proof"),
           py::arg("process") = std::pair<int, uint64_t>(0, 0), py::arg("max_message") = UINT64_MAX,
           py::arg("identity") = "", py::arg("statements") = std::pair<py::bytes, py::bytes>())
      .def("renew", &PythonTransport::renew, py::arg("certificates"), py::call_guard<py::gil_scoped_release>())
      .def("revoke", &PythonTransport::revoke, py::arg("names"), py::call_guard<py::gil_scoped_release>())
      .def("send", &send_buffers, py::arg("peer"), py::arg("parts"), py::arg("reply"), py::arg("device") = py::none());
  bind_certificates(module);
  module.def("capture_log", &capture_log, py::arg("also_print"));
  module.def("setting_names", &setting_names);
  module.def(
      "resources",
      [](const std::vector<std::pair<std::string, std::string>>& config) { return Context(config).resources(); },
      py::arg("config"));
  module.def("version", [] { return std::string(ucp_get_version_string()); });
}
