// The part of this header that request_callback_impl.h needs: the name of a type. Torch's own header has the
// conversions between Python and TorchScript, which cost the compiler 500 MB and 8 seconds.
#pragma once

#include <torch/csrc/python_headers.h>

namespace pybind11 {
class object;
}
namespace py = pybind11;
