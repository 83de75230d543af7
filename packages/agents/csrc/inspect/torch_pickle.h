// Pickles that torch's C++ makes and reads: arguments of operators and TorchScript functions, and all that torch's own
// messages consist of. The bytes are untrusted.
#pragma once

#include <string>
#include <string_view>

#include "inspect/pickle_limits.h"

namespace rpc_backends {

// Finds what would harm the process that reads the pickle, without executing it; empty if there is nothing. Torch's
// reader reserves memory for any length and any number of a memo's entry that a pickle has, and it reads types, and
// destroys values, by recursion.
std::string torch_pickle_problem(std::string_view pickle, const PickleLimits& limits);

}  // namespace rpc_backends
