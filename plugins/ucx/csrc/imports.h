// Replaces functions that a loaded library imports, for that library only.
#pragma once

#include <vector>

namespace rpc_backends::ucx {

struct Import {
  const char* name;
  void* replacement;
};

// Makes the library that contains `address` call the replacements from now on. Returns whether it imports each of these
// functions; otherwise nothing is replaced.
bool replace_imports(const void* address, const std::vector<Import>& imports);

}  // namespace rpc_backends::ucx
