// The Python bindings of the transport; _native.pyi documents them. Messages need no GIL, because an agent uses the
// C++ transport directly, through its capsule.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstring>
#include <utility>

#include "keys.h"
#include "rpc_backends_agents/openssl/python.h"
#include "rpc_backends_agents/python.h"
#include "zeromq_transport.h"

namespace py = pybind11;

namespace rpc_backends::zeromq {

namespace {

using PythonTransport = ClosedAtExit<ZeroMQTransport>;

// Makes the key pair of one session: public and secret.
py::tuple make_key_pair(bool fips) {
  const auto [public_key, secret_key] = make_keys(Crypto::get(fips));
  return py::make_tuple(py::bytes(public_key), py::bytes(std::string_view(secret_key)));
}

std::shared_ptr<PythonTransport> make(const std::optional<py::bytes>& public_key,
                                      const std::optional<py::bytes>& secret_key, bool fips, uint64_t max_message,
                                      double heartbeat, double heartbeat_timeout, double handshake_timeout,
                                      bool wants_proofs, uint32_t bulk_connections, double long_link,
                                      const std::shared_ptr<Certificates>& certificates,
                                      const py::object& on_unknown_key, const py::object& on_refused) {
  if (public_key.has_value() != secret_key.has_value()) {
    throw TransportError("give both public_key and secret_key, or neither");
  }
  Settings settings;
  if (public_key) {
    settings.public_key = *public_key;
    settings.secret_key = *secret_key;
    settings.fips = fips;
  }
  if (certificates) {
    settings.certificates = certificates;
    settings.public_key = certificates->subject().key;
    settings.fips = fips;
  }
  settings.max_message = max_message;
  settings.heartbeat = heartbeat;
  settings.heartbeat_timeout = heartbeat_timeout;
  settings.handshake_timeout = handshake_timeout;
  settings.wants_proofs = wants_proofs;
  settings.bulk_connections = bulk_connections;
  settings.long_link = long_link;
  return std::make_shared<PythonTransport>(settings, unknown_key_callback(on_unknown_key),
                                           refused_callback(on_refused));
}

void send_buffers(PythonTransport& transport, int peer, const py::iterable& buffers, bool reply) {
  Parts parts = parts_of(buffers);
  const py::gil_scoped_release release;
  transport.send(peer, std::move(parts), reply);
}

void learn(PythonTransport& transport, int peer, const std::string& endpoint,
           const std::optional<py::bytes>& public_key, const std::optional<std::array<py::bytes, 4>>& proofs,
           std::optional<uint64_t> max_message, std::pair<int, uint64_t> process) {
  Credentials credentials;
  credentials.public_key = public_key ? std::string(*public_key) : std::string();
  if (proofs) {
    credentials.our_greeting = (*proofs)[0];
    credentials.their_greeting = (*proofs)[1];
    credentials.our_answer = (*proofs)[2];
    credentials.their_answer = (*proofs)[3];
  }
  credentials.max_message = max_message.value_or(UINT64_MAX);
  credentials.process = {process.first, process.second};
  const py::gil_scoped_release release;
  transport.learn_endpoint(peer, endpoint, credentials);
}

}  // namespace

}  // namespace rpc_backends::zeromq

PYBIND11_MODULE(_native, module) {
  using namespace rpc_backends;
  using namespace rpc_backends::zeromq;
  using release = py::call_guard<py::gil_scoped_release>;

  bind_transport<ZeroMQTransport>(module)
      .def(py::init(&make), py::kw_only(), py::arg("public_key"), py::arg("secret_key"), py::arg("fips") = false,
           py::arg("max_message"), py::arg("heartbeat"), py::arg("heartbeat_timeout"), py::arg("handshake_timeout"),
           py::arg("wants_proofs") = false, py::arg("bulk_connections"), py::arg("long_link") = 0.0,
           py::arg("certificates") = py::none(), py::arg("on_unknown_key") = py::none(),
           py::arg("on_refused") = py::none())
      .def("bind", &PythonTransport::bind, py::arg("endpoints"), release())
      .def("start", &PythonTransport::start, py::arg("self_id"), release())
      .def("learn", &learn, py::arg("peer"), py::arg("endpoint"), py::arg("public_key"), py::arg("proofs") = py::none(),
           py::arg("max_message") = py::none(), py::arg("process") = std::pair<int, uint64_t>(0, 0))
      .def("renew", &PythonTransport::renew, py::arg("certificates"), release())
      .def("revoke", &PythonTransport::revoke, py::arg("names"), release())
      .def("send", &send_buffers, py::arg("peer"), py::arg("parts"), py::arg("reply"));
  // After TransportError, because the last translator is asked first, and a BindError is a TransportError.
  py::register_local_exception_translator([](std::exception_ptr error) {
    try {
      std::rethrow_exception(error);
    } catch (const BindError& failure) {
      errno = failure.number;
      const py::tuple arguments = py::make_tuple(failure.number, std::strerror(failure.number), failure.endpoint);
      PyErr_SetObject(PyExc_OSError, arguments.ptr());
    }
  });
  bind_certificates(module);
  module.def("make_keys", &make_key_pair, py::arg("fips") = false);
}
