// RRefs of their own worker whose creation fails: torch's to_here() waits for their values without any limit.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>
#include <torch/csrc/distributed/rpc/types.h>

#include <exception>

namespace rpc_backends {

// Gives `error` to an RRef that rpc.remote() creates on its own caller, unless it has a value. torch forgets the RRef
// when the call fails, and then sets no value when the function ends, so a to_here() that waits would never return.
// Call it before the future of the call gets its error. It throws nothing.
void fail_own_rref(const torch::distributed::rpc::RRefId& id, const std::exception_ptr& error);

// Creates the RRef of a request of rpc.remote() that does not run on this worker, with `error` in place of a value, so
// that a to_here() that waits ends with it. Returns the answer for the caller: torch answers so when the function has
// failed. Throws if torch knows the RRef with another type.
c10::intrusive_ptr<torch::distributed::rpc::Message> create_failed_rref(const torch::distributed::rpc::RRefId& id,
                                                                        const torch::distributed::rpc::ForkId& fork,
                                                                        bool is_python,
                                                                        const std::exception_ptr& error);

// Makes to_here(timeout) end after its timeout on an RRef's owner too. Call it with the GIL.
void limit_own_to_here();

}  // namespace rpc_backends
