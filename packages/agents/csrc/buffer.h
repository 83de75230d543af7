// Memory that crosses between Python and C++: parts of messages as Python's buffers, and the other way round.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "rpc_backends_agents/transport.h"

namespace rpc_backends {

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
      pybind11::gil_scoped_acquire gil;
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

inline void bind_part(pybind11::module_& module) {
  namespace py = pybind11;
  py::class_<Part>(module, "Part", py::buffer_protocol(), py::module_local(), "One part of a message: read-only memory.")
      .def_buffer([](Part& part) {
        return py::buffer_info(const_cast<void*>(part.data), 1, py::format_descriptor<uint8_t>::format(), 1,
                               {static_cast<py::ssize_t>(part.size)}, {1}, true);
      });
}

}  // namespace rpc_backends
