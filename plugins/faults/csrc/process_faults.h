// Faults of the whole process: little memory, stores that do not answer, a wall clock that jumps.
#pragma once

#include <cstdint>

namespace rpc_backends {

// Lets the process allocate only `bytes` more for `seconds`. It lowers RLIMIT_AS. Returns false if it cannot.
bool limit_memory(uint64_t bytes, double seconds);

// For `seconds`, requests to stores take `each` seconds longer, or wait until the time is over if `each` is 0.
void hold_stores(double seconds, double each);
// Returns how many seconds a request to a store has to wait now.
double store_delay();

// Moves the wall clock that Python sees by `seconds`, for good; clocks that only measure time stay as they are. Returns
// false if the interpreter's calls of the clock cannot be redirected.
bool move_clock(double seconds);

// Ends what lasts for a while. The clock stays where it is.
void end_process_faults();

}  // namespace rpc_backends
