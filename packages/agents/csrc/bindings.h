// The parts of what Python sees that have files of their own.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace rpc_backends {

void bind_faults(pybind11::module_& module);

}  // namespace rpc_backends
