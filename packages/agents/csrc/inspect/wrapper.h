// Wrappers that torch puts around a request for distributed autograd and profiling. The bytes are untrusted.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace rpc_backends {

// A request in its wrapper.
struct Wrapped {
  int32_t type = 0;          // the number of the request's type in torch
  std::string_view payload;  // of the request
  std::string_view pickle;   // of the wrapper
};

// Reads the payload of a wrapper: the payload of the request, a pickle, and the length of the pickle in eight bytes.
// The pickle must have the form that torch writes, opcode by opcode, so that torch reads the same type from it. Empty
// if it has any other form.
std::optional<Wrapped> read_autograd_wrapper(std::string_view payload);
std::optional<Wrapped> read_profiling_wrapper(std::string_view payload);
// The same for the answer to a call under a profiler, of which only the type is read: events of a profiler follow it.
std::optional<Wrapped> read_profiling_answer(std::string_view payload);

// A request without the wrappers that torch puts around it for autograd and profiling.
struct InspectedRequest {
  int32_t type = 0;
  std::vector<int32_t> wrappers;  // outermost first
  std::string_view payload;       // points into the message
};

// Takes the wrappers off a request. One that has another form than torch's is left in place.
InspectedRequest unwrap(int32_t type, std::string_view payload);

}  // namespace rpc_backends
