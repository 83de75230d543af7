// Passes objects between extension modules: in a capsule with a std::shared_ptr<T>*.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <utility>

namespace rpc_backends {

// Returns a capsule named `name`, which must outlive the capsule.
template <typename T>
pybind11::capsule give_capsule(std::shared_ptr<T> object, const char* name) {
  return pybind11::capsule(new std::shared_ptr<T>(std::move(object)), name, [](PyObject* capsule) {
    delete static_cast<std::shared_ptr<T>*>(PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule)));
  });
}

// Calls `method` of a Python object to get a capsule named `name`; `what` names the object in errors.
template <typename T>
std::shared_ptr<T> take_capsule(const pybind11::object& object, const char* method, const char* name,
                                const char* what) {
  const pybind11::object given = object.attr(method)();
  if (!PyCapsule_IsValid(given.ptr(), name)) {
    const char* named = PyCapsule_CheckExact(given.ptr()) ? PyCapsule_GetName(given.ptr()) : nullptr;
    const pybind11::object shown = named ? pybind11::object(pybind11::str(named)) : given;
    const auto mismatch = pybind11::module_::import("rpc_backends_agents.capsules").attr("mismatch");
    throw pybind11::type_error(mismatch(object, method, what, shown, name).cast<std::string>());
  }
  return *static_cast<std::shared_ptr<T>*>(PyCapsule_GetPointer(given.ptr(), name));
}

}  // namespace rpc_backends
