// Reads a pickle of Python's protocol 4 without executing it, and finds what would harm the process that unpickles it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rpc_backends {

struct PickleLimits {
  size_t depth = 100;        // of values inside values
  uint64_t bytes = 1 << 28;  // that the unpickled values take, at least approximately
};

// Returns what is wrong: an opcode that Python does not write for a call, such as extension codes and persistent ids;
// an entry of the memo that was not written in order; more depth or memory than the limits. Empty if nothing is.
std::string check_pickle(std::string_view pickle, const PickleLimits& limits);

}  // namespace rpc_backends
