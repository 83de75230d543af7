// What the headers of torch's RPC need of torch/types.h. Torch's own also reads every operator, which takes the
// compiler twice the time and memory. This folder comes first in the search path; see setup.py.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>

namespace torch {

using namespace at;  // NOLINT: as torch's header does

}  // namespace torch
