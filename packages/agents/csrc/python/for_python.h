// Values as Python objects.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace rpc_backends {

// A text may contain bytes from a peer that are not valid UTF-8.
inline pybind11::object for_python(const std::string& text) {
  return pybind11::reinterpret_steal<pybind11::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

inline int for_python(int number) {
  return number;
}

}  // namespace rpc_backends
