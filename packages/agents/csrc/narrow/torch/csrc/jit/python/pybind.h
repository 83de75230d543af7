// What request_callback_impl.h needs of this header: the name of a type. Torch's own has the conversions between
// Python and TorchScript, which take the compiler 500 MB and 8 seconds.
#pragma once

#include <torch/csrc/python_headers.h>

namespace pybind11 {
class object;
}
namespace py = pybind11;
