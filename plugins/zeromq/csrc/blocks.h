// Reusable memory for the large parts of messages.
//
// The kernel clears every page that it hands out, which takes as long as receiving a large message. Unused blocks,
// up to kKept bytes, are therefore kept for reuse. They are marked as free for the kernel, which takes them only if
// memory is short.
#pragma once

#include <cstddef>

#include "rpc_backends_agents/transport.h"

namespace rpc_backends::zeromq {

// Bytes of all blocks that are kept.
inline constexpr size_t kKept = size_t{256} << 20;

// Returns uninitialised memory, aligned to 16 bytes. A large block is kept for reuse when its owner is destroyed.
// Throws std::bad_alloc.
Part take_block(size_t size);

}  // namespace rpc_backends::zeromq
