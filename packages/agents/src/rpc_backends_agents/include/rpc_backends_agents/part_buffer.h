// Parts of messages as Python's buffers.
#pragma once

#include <pybind11/pybind11.h>

#include "rpc_backends_agents/transport.h"

namespace rpc_backends {

inline void bind_part(pybind11::module_& module) {
  namespace py = pybind11;
  py::class_<Part>(module, "Part", py::buffer_protocol(), py::module_local(),
                   "One part of a message: read-only memory.")
      .def_buffer([](Part& part) {
        return py::buffer_info(const_cast<void*>(part.data), 1, py::format_descriptor<uint8_t>::format(), 1,
                               {static_cast<py::ssize_t>(part.size)}, {1}, true);
      });
}

}  // namespace rpc_backends
