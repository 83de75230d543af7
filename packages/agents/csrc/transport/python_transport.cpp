#include "transport/python_transport.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "python/capsule.h"
#include "rpc_backends_agents/part_buffer.h"
#include "rpc_backends_agents/python.h"
#include "transport/memory_transport.h"

namespace py = pybind11;

namespace rpc_backends {

namespace {

// How long a sending thread waits for the next message before it ends.
constexpr std::chrono::seconds kFreeTime{5};
// How long close() waits for the sending threads.
constexpr std::chrono::seconds kEnding{2};

// Runs `call` with the GIL; a Python exception becomes a TransportError with its text.
template <typename Call>
auto in_python(Call call) {
  py::gil_scoped_acquire gil;
  try {
    return call();
  } catch (py::error_already_set& error) {
    std::string text;
    try {
      text = py::str(error.type().attr("__name__")).cast<std::string>() + ": ";
      text += py::str(error.value()).cast<std::string>();
    } catch (const std::exception&) {
      text += "(an error without a text)";
    }
    throw TransportError(text);
  }
}

// The message for a method of a Python transport that returns the wrong type.
std::string wrong_result(const py::object& transport, const char* method, const py::object& result, const char* must) {
  const py::handle type = py::type::handle_of(transport);
  return (py::str("{}.{}.{}() of the transport returned {!r}; it must return {}.")
              .format(type.attr("__module__"), type.attr("__qualname__"), method, result, must))
      .cast<std::string>();
}

}  // namespace

void Inbox::deliver(int peer, const py::iterable& parts) {
  Event event;
  event.peer = peer;
  event.parts = parts_of(parts);
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

PythonTransport::PythonTransport(py::object transport) : senders_(std::make_shared<Senders>(std::move(transport))) {}

PythonTransport::Senders::~Senders() {
  if (Py_IsInitialized() != 0) {
    py::gil_scoped_acquire gil;
    transport = py::object();
  } else {
    transport.release();
  }
}

Text PythonTransport::listen(int self, std::string_view name) {
  py::gil_scoped_acquire gil;
  const py::object address = transport_.attr("listen")(self, name, Inbox(events_));
  if (!py::isinstance<py::str>(address)) {
    throw py::type_error(wrong_result(transport_, "listen", address, "this worker's address as a str"));
  }
  return address.cast<std::string>();
}

void PythonTransport::learn(int peer, std::string_view name, std::string_view address) {
  py::gil_scoped_acquire gil;
  transport_.attr("learn")(peer, name, address);
}

void PythonTransport::forget(int peer) {
  in_python([&] { transport_.attr("forget")(peer); });
}

void PythonTransport::send(int peer, Parts parts, bool reply) {
  Senders& all = *senders_;
  std::lock_guard<std::mutex> lock(all.mutex);
  if (all.closed) {
    throw TransportError("the transport is closed");
  }
  const auto [queue, is_new] = all.queues.try_emplace(peer);
  if (is_new) {
    try {
      // Detached, because a peer may block it for ever.
      std::thread([shared = senders_, peer] { send_all(shared, peer); }).detach();
    } catch (const std::exception& error) {
      all.queues.erase(queue);
      throw TransportError(std::string("the thread that sends cannot be started: ") + error.what());
    }
    ++all.threads;
  }
  queue->second.push_back({std::move(parts), reply});
  all.changed.notify_all();
}

void PythonTransport::send_all(const std::shared_ptr<Senders>& shared, int peer) {
  Senders& all = *shared;
  std::unique_lock<std::mutex> lock(all.mutex);
  std::deque<Outgoing>& queue = all.queues[peer];
  const auto has_work = [&] { return all.closed || !queue.empty(); };
  while (all.changed.wait_for(lock, kFreeTime, has_work) && !queue.empty()) {
    {
      const Outgoing next = std::move(queue.front());
      queue.pop_front();
      ++all.sending;
      lock.unlock();
      contained("while a transport was sending", [&] { send_one(all, peer, next); });
    }
    lock.lock();
    --all.sending;
    all.changed.notify_all();
  }
  all.queues.erase(peer);
  --all.threads;
  all.changed.notify_all();
}

void PythonTransport::send_one(Senders& all, int peer, const Outgoing& outgoing) {
  const auto error = error_in([&] {
    in_python([&] {
      py::list views;
      for (const Part& part : outgoing.parts) {
        views.append(py::memoryview(py::cast(part)));
      }
      all.transport.attr("send")(peer, views, outgoing.reply);
    });
  });
  if (!error) {
    return;
  }
  if (outgoing.reply) {
    all.events->push({Event::Kind::kUnsent, peer, outgoing.parts, *error});
  } else {
    all.events->push({Event::Kind::kLost, peer, {}, *error});
    all.events->push({Event::Kind::kFound, peer, {}, {}});  // the next message is tried again
  }
}

void PythonTransport::reject(int peer, std::string_view reason) {
  try {
    in_python([&] { transport_.attr("reject")(peer, reason); });
  } catch (const TransportError& error) {
    warn(std::string("RPC: the transport's reject() failed: ") + error.what());
  }
}

void PythonTransport::close(double linger) {
  Senders& all = *senders_;
  std::vector<std::deque<Outgoing>> unsent;  // destroyed without the lock, because that may need the GIL
  {
    std::unique_lock<std::mutex> lock(all.mutex);
    if (all.closed) {
      return;
    }
    all.changed.wait_for(lock, std::chrono::duration<double>(linger), [&all] {
      const auto is_empty = [](const auto& queue) { return queue.second.empty(); };
      return all.sending == 0 && std::all_of(all.queues.begin(), all.queues.end(), is_empty);
    });
    all.closed = true;
    for (auto& [peer, queue] : all.queues) {
      unsent.push_back(std::move(queue));
      queue.clear();
    }
  }
  all.changed.notify_all();
  try {
    in_python([&] { transport_.attr("close")(linger); });
  } catch (const TransportError& error) {
    warn(std::string("RPC: the transport's close() failed: ") + error.what());
  }
  events_->close();
  // The transport's send() may still be waiting for a peer.
  std::unique_lock<std::mutex> lock(all.mutex);
  if (!all.changed.wait_for(lock, kEnding, [&all] { return all.threads == 0; })) {
    lock.unlock();
    warn("RPC: the transport's close() did not end a call of its send(); the thread of that call keeps running");
  }
}

Metrics PythonTransport::metrics() const {
  return in_python([&] {
    const py::object result = transport_.attr("metrics")();
    try {
      const auto texts = result.cast<std::map<std::string, std::string>>();
      return Metrics(texts.begin(), texts.end());
    } catch (const py::cast_error&) {
      throw TransportError(wrong_result(transport_, "metrics", result, "a dict of str to str"));
    }
  });
}

std::shared_ptr<Transport> take_transport(const py::object& transport) {
  if (!py::hasattr(transport, "__rpc_transport__")) {
    return std::make_shared<ClosedAtExit<PythonTransport>>(transport);
  }
  return take_capsule<Transport>(transport, "__rpc_transport__", kTransportCapsule, "transport");
}

void bind_transports(py::module_& module) {
  bind_part(module);
  ClosedAtExit<PythonTransport>::close_all_at_exit();
  py::class_<Inbox>(module, "Inbox", py::module_local(), "Receives the events of a transport's connections.")
      .def("deliver", &Inbox::deliver, py::arg("peer"), py::arg("parts"))
      .def("lost", &Inbox::lost, py::arg("peer"), py::arg("reason"))
      .def("found", &Inbox::found, py::arg("peer"));
  py::class_<MemoryTransport, std::shared_ptr<MemoryTransport>>(module, "MemoryTransport")
      .def(py::init<>())
      .def("__rpc_transport__", [](const std::shared_ptr<MemoryTransport>& self) {
        return give_capsule<Transport>(self, kTransportCapsule);
      });
}

}  // namespace rpc_backends
