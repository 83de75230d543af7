// What a pickled call says about itself: the function, and the RRef and the method that torch's own functions call. It
// is read without unpickling, and a bounded number of opcodes of it. The bytes are untrusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace rpc_backends {

// The most opcodes that a search reads, and the longest name of a class or a method that it returns.
constexpr int kMostOpcodes = 4096;
constexpr size_t kLongestName = 512;

struct RRefId {
  int64_t created_on = 0;
  int64_t local_id = 0;
  bool operator==(const RRefId&) const = default;
};

// A call of a Python function.
struct PickledCall {
  std::string function;  // MODULE.QUALNAME; empty if it cannot be read
  // The position after the function's name, which depends only on the bytes up to there; 0 if there is no name.
  size_t end = 0;
  // Of a call through an RRef or a RemoteModule:
  std::optional<RRefId> rref;
  std::string method;  // empty if the call is none
  // Of a call that creates the module of a RemoteModule: MODULE.QUALNAME of the module's class.
  std::string created_class;

  // What to call the method if the class of the RRef's value is `class_name`; empty if that is not known.
  std::string method_of(const std::string& class_name) const;
};

// `pickle` is Python's pickle of PythonUDF(function, arguments, keywords).
PickledCall read_call(std::string_view pickle);

// The RRef whose class a call asks for, as torch does before the first call of a method; empty for all other calls.
// Takes a few nanoseconds for these.
std::optional<RRefId> asked_class(std::string_view pickle);

// The name of the class that a pickle consists of; empty if it holds anything else.
std::string pickled_class(std::string_view pickle);

// The pickle of the call in torch's pickle of a remote call, which creates an RRef. Sets `created`, if it is not null,
// to the id of the RRef, if it can be read.
std::string_view remote_call(std::string_view pickle, std::optional<RRefId>* created = nullptr);

}  // namespace rpc_backends
