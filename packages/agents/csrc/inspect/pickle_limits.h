// Reads a pickle of Python's protocol 4 without executing it, and finds what would harm the process that unpickles it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace rpc_backends {

struct PickleLimits {
  size_t depth = 100;        // of values inside values
  uint64_t bytes = 1 << 28;  // that the unpickled values take, at least approximately, or that are walked through
  uint64_t keys = 4096;      // of dicts and sets, without texts, bytes and short numbers
};

struct PickleReport {
  enum class Form {
    kPlain,  // values and tensors: it names nothing else, and calls nothing
    kCall,   // torch's call of one function with such arguments, in torch's form, and nothing else
    kOther,
  };

  std::string problem;  // empty if there is none
  Form form = Form::kOther;
  std::string function;  // MODULE:QUALNAME of the function of a call
};

// Finds what is wrong: an opcode that Python does not write for a call, such as extension codes and persistent ids;
// an entry of the memo that was not written in order; a value that holds itself; items for a value that is no
// container; more depth, memory or keys than the limits. Hashing and calling count as memory.
PickleReport check_pickle(std::string_view pickle, const PickleLimits& limits);

}  // namespace rpc_backends
