// The part of torch/types.h that torch's RPC headers need. Torch's own header also includes every operator, which
// doubles the compiler's time and memory. This folder comes first in the search path; see CMakeLists.txt.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>

namespace torch {

using namespace at;  // as torch's header does

}  // namespace torch
