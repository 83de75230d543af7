// Lets other workers call only the functions on a list.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <rpc_backends_agents/interceptor.h>

#include <atomic>
#include <set>

using namespace rpc_backends;
namespace py = pybind11;

using Functions = std::set<std::string, std::less<>>;  // std::less<> finds a std::string_view

class Allowlist final : public Interceptor {
 public:
  explicit Allowlist(Functions functions) : functions_(std::move(functions)) {}

  // Called before each message; skipping outgoing messages here makes them cost nothing.
  bool wants(Direction direction) const noexcept override { return direction == Direction::kIncoming; }

  void on_request(RequestPtr request) override {
    const RequestHead& head = request->head();
    if (!calls_function(head.type()) || functions_.count(head.function()) > 0) {
      request->pass();
      return;
    }
    ++refused_;
    request->fail("worker '" + std::string(head.worker()) + "' does not run '" + std::string(head.function()) +
                  "' for '" + std::string(head.peer()) + "'");
  }

  Metrics metrics() const override { return {{"refused", std::to_string(refused_)}}; }

 private:
  const Functions functions_;
  std::atomic<int> refused_{0};
};

PYBIND11_MODULE(_native, module) {
  py::class_<Allowlist, std::shared_ptr<Allowlist>>(module, "Allowlist", py::module_local())
      .def(py::init<Functions>())
      .def("__rpc_interceptor__", [](const std::shared_ptr<Allowlist>& self) {
        return py::capsule(new std::shared_ptr<Interceptor>(self), kInterceptorCapsule, [](PyObject* capsule) {
          delete static_cast<std::shared_ptr<Interceptor>*>(PyCapsule_GetPointer(capsule, kInterceptorCapsule));
        });
      });
}
