#include "python_transport.h"

#include <pybind11/stl.h>

#include <chrono>
#include <exception>

#include "capsule.h"
#include "log.h"
#include "memory_transport.h"

namespace py = pybind11;

namespace rpc_backends {

namespace {

// A buffer of Python's, held for as long as a message is in it.
class Held {
 public:
  explicit Held(py::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_SIMPLE) != 0) {
      throw py::error_already_set();
    }
  }

  ~Held() {
    // Whoever lets go of a message does not hold the GIL; after the interpreter nothing can be released.
    if (Py_IsInitialized() != 0) {
      py::gil_scoped_acquire gil;
      PyBuffer_Release(&buffer_);
    }
  }

  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  const void* data() const { return buffer_.buf; }
  size_t size() const { return static_cast<size_t>(buffer_.len); }

 private:
  Py_buffer buffer_{};
};

// Runs `call` with the GIL; what Python raises becomes a TransportError of its text.
template <typename Call>
auto in_python(Call call) {
  py::gil_scoped_acquire gil;
  try {
    return call();
  } catch (py::error_already_set& error) {
    const std::string kind = py::str(error.type().attr("__name__"));
    const std::string text = py::str(error.value());
    throw TransportError(kind + ": " + text);
  }
}

}  // namespace

void Inbox::deliver(int peer, const py::iterable& parts) {
  Event event;
  event.peer = peer;
  for (const py::handle part : parts) {
    auto held = std::make_shared<Held>(part);
    event.parts.push_back({held->data(), held->size(), held});
  }
  py::gil_scoped_release release;
  events_->push(std::move(event));
}

void Inbox::lost(int peer, const std::string& reason) {
  py::gil_scoped_release release;
  events_->push({Event::Kind::kLost, peer, {}, reason});
}

void Inbox::found(int peer) {
  py::gil_scoped_release release;
  events_->push({Event::Kind::kFound, peer, {}, {}});
}

PythonTransport::PythonTransport(py::object transport) : transport_(std::move(transport)) {}

PythonTransport::~PythonTransport() {
  if (Py_IsInitialized() != 0) {
    py::gil_scoped_acquire gil;
    transport_ = py::object();
  } else {
    transport_.release();
  }
}

std::string PythonTransport::listen(int self, const std::string& name) {
  py::gil_scoped_acquire gil;
  return transport_.attr("listen")(self, name, Inbox(events_)).cast<std::string>();
}

void PythonTransport::learn(int peer, const std::string& name, const std::string& address) {
  py::gil_scoped_acquire gil;
  transport_.attr("learn")(peer, name, address);
}

void PythonTransport::forget(int peer) {
  in_python([&] { transport_.attr("forget")(peer); });
}

void PythonTransport::send(int peer, Parts parts, bool reply) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) {
    throw TransportError("the transport is closed");
  }
  outgoing_.push_back({peer, std::move(parts), reply});
  if (!sender_.joinable()) {
    sender_ = std::thread([this] { send_all(); });
  }
  changed_.notify_all();
}

void PythonTransport::send_all() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closed_ || !outgoing_.empty(); });
    if (outgoing_.empty()) {
      return;
    }
    Outgoing next = std::move(outgoing_.front());
    outgoing_.pop_front();
    sending_ = true;
    lock.unlock();
    send_one(std::move(next));
    lock.lock();
    sending_ = false;
    changed_.notify_all();
  }
}

void PythonTransport::send_one(Outgoing outgoing) {
  const int peer = outgoing.peer;
  const bool reply = outgoing.reply;
  try {
    in_python([&] {
      py::list views;
      for (Part& part : outgoing.parts) {
        views.append(py::memoryview(py::cast(std::move(part))));
      }
      transport_.attr("send")(peer, views, reply);
    });
  } catch (const TransportError& error) {
    if (!reply) {
      events_->push({Event::Kind::kLost, peer, {}, error.what()});
      events_->push({Event::Kind::kFound, peer, {}, {}});  // what comes next is tried
    }
  }
}

void PythonTransport::reject(int peer, const std::string& reason) {
  try {
    in_python([&] { transport_.attr("reject")(peer, reason); });
  } catch (const TransportError& error) {
    warn(std::string("RPC: the transport's reject() failed: ") + error.what());
  }
}

void PythonTransport::close(double linger) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (closed_) {
      return;
    }
    changed_.wait_for(lock, std::chrono::duration<double>(linger), [this] { return outgoing_.empty() && !sending_; });
    closed_ = true;
    outgoing_.clear();
  }
  changed_.notify_all();
  try {
    in_python([&] { transport_.attr("close")(linger); });
  } catch (const TransportError& error) {
    warn(std::string("RPC: the transport's close() failed: ") + error.what());
  }
  events_->close();
  if (sender_.joinable()) {
    sender_.join();
  }
}

std::map<std::string, std::string> PythonTransport::metrics() const {
  return in_python([&] { return transport_.attr("metrics")().cast<std::map<std::string, std::string>>(); });
}

std::shared_ptr<Transport> take_transport(const py::object& transport) {
  if (!py::hasattr(transport, "__rpc_transport__")) {
    return std::make_shared<PythonTransport>(transport);
  }
  return take_capsule<Transport>(transport, "__rpc_transport__", kTransportCapsule, "transport");
}

void bind_transports(py::module_& module) {
  py::class_<Part>(module, "Part", py::buffer_protocol(), py::module_local(), "One part of a message: memory, for reading.")
      .def_buffer([](Part& part) {
        return py::buffer_info(const_cast<void*>(part.data), 1, py::format_descriptor<uint8_t>::format(), 1,
                               {static_cast<py::ssize_t>(part.size)}, {1}, true);
      });
  py::class_<Inbox>(module, "Inbox", py::module_local(), "Where a transport puts what has happened on its connections.")
      .def("deliver", &Inbox::deliver, py::arg("peer"), py::arg("parts"))
      .def("lost", &Inbox::lost, py::arg("peer"), py::arg("reason"))
      .def("found", &Inbox::found, py::arg("peer"));
  py::class_<MemoryTransport, std::shared_ptr<MemoryTransport>>(module, "MemoryTransport")
      .def(py::init<>())
      .def("__rpc_transport__", [](const std::shared_ptr<MemoryTransport>& self) {
        auto* held = new std::shared_ptr<Transport>(self);
        return py::capsule(held, kTransportCapsule, [](PyObject* capsule) {
          delete static_cast<std::shared_ptr<Transport>*>(PyCapsule_GetPointer(capsule, kTransportCapsule));
        });
      });
}

}  // namespace rpc_backends
