// Memory for the large parts of messages, used again.
//
// The kernel clears every page that it hands out, and that takes as long as it takes a large message to
// arrive. So a few blocks are kept, up to kKept bytes, when nobody uses them any more. They are offered back
// to the kernel at once, which takes them where memory is short, and otherwise leaves them as they are.
#pragma once

#include <cstddef>

#include "rpc_backends_agents/transport.h"

namespace rpc_backends::zeromq {

// Bytes of all blocks that are kept.
inline constexpr size_t kKept = size_t{256} << 20;

// Memory with whatever was in it before, at a multiple of 16; a large block is kept when its owner goes.
// Throws std::bad_alloc.
Part take_block(size_t size);

}  // namespace rpc_backends::zeromq
