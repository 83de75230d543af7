// A Python module to drive a transport in C++ from Python, for tests of the transport. Nothing of torch is used.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>

#include "python/capsule.h"
#include "rpc_backends_agents/part_buffer.h"
#include "rpc_backends_agents/python.h"
#include "rpc_backends_agents/transport.h"

namespace py = pybind11;

namespace rpc_backends {

namespace {

class NativeTransport {
 public:
  explicit NativeTransport(const py::object& object)
      : transport_(take_capsule<Transport>(object, "__rpc_transport__", kTransportCapsule, "transport")) {}

  ~NativeTransport() {
    const py::gil_scoped_release release;  // the last reference may end threads that need the GIL
    transport_.reset();
  }

  NativeTransport(const NativeTransport&) = delete;
  NativeTransport& operator=(const NativeTransport&) = delete;

  Transport& get() const { return *transport_; }

  void send(int peer, const py::iterable& buffers, bool reply) const {
    Parts parts = parts_of(buffers);
    const py::gil_scoped_release release;
    transport_->send(peer, std::move(parts), reply);
  }

  py::object receive() const {
    Event event;
    bool received = false;
    {
      const py::gil_scoped_release release;
      received = transport_->receive(event);
    }
    if (!received) {
      return py::none();
    }
    return tuple_of(event) + py::make_tuple(event.order);
  }

 private:
  std::shared_ptr<Transport> transport_;
};

}  // namespace

}  // namespace rpc_backends

PYBIND11_MODULE(_native_transport, module) {
  using rpc_backends::NativeTransport;
  using release = py::call_guard<py::gil_scoped_release>;

  // This module loads with every torch, so it can say which torch the other module of this package needs.
  py::register_local_exception<rpc_backends::TransportError>(module, "TransportError", PyExc_RuntimeError);
  rpc_backends::bind_part(module);
  py::class_<NativeTransport>(module, "NativeTransport", py::module_local())
      .def(py::init<const py::object&>(), py::arg("transport"))
      .def(
          "listen",
          [](NativeTransport& self, int id, const std::string& name) {
            return std::string(self.get().listen(id, name));
          },
          release())
      .def(
          "learn",
          [](NativeTransport& self, int peer, const std::string& name, const std::string& address) {
            self.get().learn(peer, name, address);
          },
          release())
      .def("send", &NativeTransport::send)
      .def("receive", &NativeTransport::receive)
      .def(
          "forget", [](NativeTransport& self, int peer) { self.get().forget(peer); }, release())
      .def(
          "reject", [](NativeTransport& self, int peer, const std::string& reason) { self.get().reject(peer, reason); },
          release())
      .def(
          "close", [](NativeTransport& self, double linger) { self.get().close(linger); }, release())
      .def("metrics", [](NativeTransport& self) { return rpc_backends::metrics_of(self.get()); });
}
