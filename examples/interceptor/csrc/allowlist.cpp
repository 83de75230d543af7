// Lets other workers call only the functions on a list.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <rpc_backends_agents/interceptor.h>

#include <atomic>
#include <set>

using namespace rpc_backends;
namespace py = pybind11;

class Allowlist final : public Interceptor {
 public:
  explicit Allowlist(std::set<std::string> functions) : functions_(std::move(functions)) {}

  // Called before each message; skipping outgoing messages here makes them cost nothing.
  bool wants(Direction direction) const noexcept override { return direction == Direction::kIncoming; }

  void on_request(RequestPtr request) override {
    const RequestHead& head = request->head();
    if (!calls_function(head.type()) || functions_.count(head.function()) > 0) {
      request->pass();
      return;
    }
    ++refused_;
    request->fail("worker '" + head.worker() + "' does not run '" + head.function() + "' for '" + head.peer() + "'");
  }

  std::map<std::string, std::string> metrics() const override { return {{"refused", std::to_string(refused_)}}; }

 private:
  const std::set<std::string> functions_;
  std::atomic<int> refused_{0};
};

PYBIND11_MODULE(_native, module) {
  py::class_<Allowlist, std::shared_ptr<Allowlist>>(module, "Allowlist")
      .def(py::init<std::set<std::string>>())
      .def("__rpc_interceptor__", [](const std::shared_ptr<Allowlist>& self) {
        return py::capsule(new std::shared_ptr<Interceptor>(self), kInterceptorCapsule, [](PyObject* capsule) {
          delete static_cast<std::shared_ptr<Interceptor>*>(PyCapsule_GetPointer(capsule, kInterceptorCapsule));
        });
      });
}
