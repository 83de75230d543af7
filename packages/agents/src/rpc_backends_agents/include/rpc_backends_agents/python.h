// What a C++ transport needs in its Python extension module; uses pybind11.
#pragma once

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "rpc_backends_agents/callback_thread.h"
#include "rpc_backends_agents/gated_transport.h"
#include "rpc_backends_agents/part_buffer.h"
#include "rpc_backends_agents/transport.h"

namespace rpc_backends {

// The name of a kind of event in Python.
inline const char* name_of(Event::Kind kind) {
  switch (kind) {
    case Event::Kind::kMessage:
      return "message";
    case Event::Kind::kLost:
      return "lost";
    case Event::Kind::kFound:
      return "found";
    case Event::Kind::kUnsent:
      return "unsent";
  }
  throw TransportError("an event has an unknown kind");
}

// Returns an event as Python sees it: kind, peer, parts as memoryviews, reason. Call bind_part() for the module.
inline pybind11::tuple tuple_of(Event& event) {
  pybind11::list parts;
  for (Part& part : event.parts) {
    parts.append(pybind11::memoryview(pybind11::cast(std::move(part))));
  }
  // The reason may quote untrusted data.
  const auto reason = pybind11::reinterpret_steal<pybind11::str>(
      PyUnicode_DecodeUTF8(event.reason.data(), static_cast<Py_ssize_t>(event.reason.size()), "backslashreplace"));
  return pybind11::make_tuple(name_of(event.kind), event.peer, parts, reason);
}

// Releases the GIL if this thread holds it. close() waits for threads that may need the GIL.
class WithoutGil {
 public:
  WithoutGil() {
    if (Py_IsInitialized() != 0 && PyGILState_Check() == 1) {
      release_.emplace();
    }
  }

 private:
  std::optional<pybind11::gil_scoped_release> release_;
};

// A transport that Python owns, which is closed before the interpreter exits.
template <typename Base>
class ClosedAtExit final : public Base, public std::enable_shared_from_this<ClosedAtExit<Base>> {
 public:
  template <typename... Arguments>
  explicit ClosedAtExit(Arguments&&... arguments) : Base(std::forward<Arguments>(arguments)...) {
    std::lock_guard<std::mutex> lock(mutex());
    all().insert(this);
  }

  ~ClosedAtExit() override {
    {
      std::lock_guard<std::mutex> lock(mutex());
      all().erase(this);
    }
    close(0);
  }

  void close(double linger) override {
    const WithoutGil without;
    Base::close(linger);
  }

  // Makes the transports close before the interpreter exits: afterwards their callback threads could not end.
  static void close_all_at_exit() {
    pybind11::module_::import("rpc_backends_core.spi")
        .attr("at_exit")(
            pybind11::cpp_function(&ClosedAtExit::close_all, pybind11::call_guard<pybind11::gil_scoped_release>()));
  }

  static void close_all() {
    exiting_thread() = std::this_thread::get_id();
    for (;;) {
      // Keeps the transport alive while it closes: its callbacks may hold the last reference.
      std::shared_ptr<ClosedAtExit> next;
      {
        std::lock_guard<std::mutex> lock(mutex());
        if (all().empty()) {
          return;
        }
        next = (*all().begin())->weak_from_this().lock();
        all().erase(all().begin());
      }
      if (next) {
        next->close(0);
      }
    }
  }

  // Never returns once another thread has begun to end the interpreter. Call it before the GIL is taken back: Python
  // ends a thread that asks for the GIL too late, and in a frame of C++ that aborts the process.
  static void stay_if_exiting() {
    const std::thread::id exiting = exiting_thread();
    while (exiting != std::thread::id() && exiting != std::this_thread::get_id()) {
      ::pause();
    }
  }

 private:
  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static std::atomic<std::thread::id>& exiting_thread() {
    static std::atomic<std::thread::id> thread{std::thread::id()};
    return thread;
  }
  static std::set<ClosedAtExit*>& all() {
    static std::set<ClosedAtExit*> all;
    return all;
  }
};

// Wraps a Python function so that any thread may call and release it.
inline std::shared_ptr<pybind11::object> shared(const pybind11::object& function) {
  return {new pybind11::object(function), [](pybind11::object* held) {
            if (Py_IsInitialized() == 0) {
              held->release();
              return;
            }
            const pybind11::gil_scoped_acquire gil;
            delete held;
          }};
}

// A Python buffer, kept as long as a message uses it.
class Held {
 public:
  explicit Held(pybind11::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_SIMPLE) != 0) {
      throw pybind11::error_already_set();
    }
  }

  ~Held() {
    // This thread does not hold the GIL. After the interpreter has ended, nothing can be released.
    if (Py_IsInitialized() != 0) {
      const pybind11::gil_scoped_acquire gil;
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

// Returns the parts of a message from Python's buffers.
inline Parts parts_of(const pybind11::iterable& buffers) {
  Parts parts;
  for (const pybind11::handle buffer : buffers) {
    auto held = std::make_shared<Held>(buffer);
    parts.push_back({held->data(), held->size(), held});
  }
  return parts;
}

inline CallbackThread::OnUnknownKey unknown_key_callback(const pybind11::object& function) {
  if (function.is_none()) {
    return {};
  }
  return [function = shared(function)](const std::string& key, double waited) -> std::optional<int> {
    const pybind11::gil_scoped_acquire gil;
    try {
      const pybind11::object worker = (*function)(pybind11::bytes(key), waited);
      return worker.is_none() ? std::nullopt : std::optional<int>(worker.cast<int>());
    } catch (pybind11::error_already_set& error) {
      error.discard_as_unraisable("on_unknown_key");
    } catch (const pybind11::cast_error&) {
    }
    return std::nullopt;
  };
}

inline CallbackThread::OnRefused refused_callback(const pybind11::object& function) {
  if (function.is_none()) {
    return {};
  }
  return [function = shared(function)](const std::string& line) {
    const pybind11::gil_scoped_acquire gil;
    try {
      // The line may quote untrusted data.
      (*function)(pybind11::reinterpret_steal<pybind11::object>(
          PyUnicode_DecodeUTF8(line.data(), static_cast<Py_ssize_t>(line.size()), "backslashreplace")));
    } catch (pybind11::error_already_set& error) {
      error.discard_as_unraisable("on_refused");
    }
  };
}

// Returns the next event; None after `timeout` seconds without one, or once the transport is closed. Waits in slices,
// so that Ctrl-C works.
template <typename Base>
pybind11::object receive_tuple(ClosedAtExit<Base>& transport, std::optional<double> timeout) {
  using Clock = GatedTransport::Clock;
  constexpr std::chrono::milliseconds slice{100};
  const auto deadline =
      timeout ? Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(*timeout))
              : Clock::time_point::max();
  for (;;) {
    Event event;
    Received received{};
    {
      const pybind11::gil_scoped_release release;
      received = transport.receive_until(event, std::min(deadline, Clock::now() + slice));
      ClosedAtExit<Base>::stay_if_exiting();
    }
    if (received == Received::kEvent) {
      return tuple_of(event);
    }
    if (received == Received::kClosed || Clock::now() >= deadline) {
      return pybind11::none();
    }
    if (PyErr_CheckSignals() != 0) {
      throw pybind11::error_already_set();
    }
  }
}

// Returns the object through which an agent uses the transport.
inline pybind11::capsule capsule_of(const std::shared_ptr<Transport>& transport) {
  auto* const held = new std::shared_ptr<Transport>(transport);
  return pybind11::capsule(held, kTransportCapsule, [](PyObject* capsule) {
    delete static_cast<std::shared_ptr<Transport>*>(PyCapsule_GetPointer(capsule, kTransportCapsule));
  });
}

// Returns the metrics of a transport as a dict of texts.
template <typename From>
pybind11::dict metrics_of(const From& transport) {
  Metrics metrics;
  {
    const pybind11::gil_scoped_release release;
    metrics = transport.metrics();
  }
  pybind11::dict dict;
  for (const auto& [name, value] : metrics) {
    dict[pybind11::str(std::string_view(name))] = pybind11::str(std::string_view(value));
  }
  return dict;
}

// Makes the Python class of a transport, with the methods that all transports have: forget, reject, receive, close,
// metrics, and the capsule. Also binds parts and TransportError.
template <typename Base>
auto bind_transport(pybind11::module_& module) {
  namespace py = pybind11;
  using Bound = ClosedAtExit<Base>;
  using release = py::call_guard<py::gil_scoped_release>;
  py::register_local_exception<TransportError>(module, "TransportError", PyExc_RuntimeError);
  bind_part(module);
  auto bound = py::class_<Bound, std::shared_ptr<Bound>>(module, "Transport", py::module_local())
                   .def("forget", &Bound::forget, py::arg("peer"), release())
                   .def("reject", &Bound::reject, py::arg("peer"), py::arg("reason"), release())
                   .def("receive", &receive_tuple<Base>, py::arg("timeout") = py::none())
                   .def("close", &Bound::close, py::arg("linger"), release())
                   .def("metrics", &metrics_of<Bound>)
                   .def("__rpc_transport__", [](const std::shared_ptr<Bound>& self) { return capsule_of(self); });
  Bound::close_all_at_exit();
  return bound;
}

// Makes the Python class of an EngineTransport; `Engine` is the engine.
template <typename Engine>
auto bind_engine(pybind11::module_& module) {
  return bind_transport<EngineTransport<Engine>>(module);
}

// Returns a method for the class that bind_engine() makes: it calls this one of the engine, without the GIL.
template <typename Engine, typename Result, typename... Parameters>
auto engine_method(Result (Engine::*method)(Parameters...)) {
  return [method](ClosedAtExit<EngineTransport<Engine>>& transport, Parameters... arguments) {
    const pybind11::gil_scoped_release release;
    return transport.call(method, std::forward<Parameters>(arguments)...);
  };
}

}  // namespace rpc_backends
