// What a script call runs: a builtin operator or a TorchScript function. It is read without unpickling, from the end of
// torch's pickle, where torch reads it too. The bytes are untrusted.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace rpc_backends {

struct ScriptCallee {
  bool is_operator = false;
  // NAMESPACE::NAME.OVERLOAD of an operator, without the overload if it has none; or the qualified name of a function.
  std::string name;
};

// Empty if the pickle has any other form than torch gives to it. Torch finds an operator by its schema, not by the name
// beside it, so this reads the schema. `is_remote`: whether the pickle ends with the two ids of an RRef, as in a call
// that creates one.
std::optional<ScriptCallee> read_script_call(std::string_view pickle, bool is_remote);

}  // namespace rpc_backends
