// The engine of GUARDED_TCP: TCP connections that begin with a proof of 32 bytes.
#include "rpc_backends_agents/python.h"
#include "rpc_backends_agents/stream_engine.h"

namespace py = pybind11;
using namespace rpc_backends;

namespace {

class TcpEngine final : public StreamEngine {
 public:
  TcpEngine(std::string host, uint64_t max_message, const py::object& whose, const py::object& refused)
      : StreamEngine(max_message, unknown_key_callback(whose), refused_callback(refused)), host_(std::move(host)) {}

  int start() {
    auto listener = std::make_unique<Fd>(stream::open_socket(stream::address_of(host_, 0)));
    const int port = stream::listen_on(listener->get(), host_);
    accept_on(std::move(listener));
    return port;
  }

  void learn_proof(int peer, const std::string& host, int port, const std::string& ours) {
    learn(peer, stream::address_of(host, port), ours);
  }

 protected:
  void greet(int fd, const std::string& proof) override { stream::send_all(fd, proof.data(), proof.size()); }

  std::string receive_greeting(int fd) override {
    std::string proof(32, 0);
    stream::receive_all(fd, proof.data(), proof.size());
    return proof;
  }

 private:
  const std::string host_;
};

}  // namespace

PYBIND11_MODULE(_guarded_tcp, module) {
  bind_engine<TcpEngine>(module)
      .def(py::init<std::string, uint64_t, py::object, py::object>(), py::kw_only(), py::arg("host"),
           py::arg("max_message"), py::arg("on_unknown_key"), py::arg("on_refused"))
      .def("start", engine_method(&TcpEngine::start))
      .def("learn", engine_method(&TcpEngine::learn_proof));
}
