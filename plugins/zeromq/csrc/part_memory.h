// Memory for the parts of a message that arrives.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "rpc_backends_agents/blocks.h"
#include "wire.h"

namespace rpc_backends::zeromq {

// Smaller parts of a message share one block of memory.
inline constexpr size_t kShared = 4096;

// Returns uninitialised memory for each part. Throws std::bad_alloc.
inline Parts take_parts(const std::vector<uint64_t>& sizes) {
  size_t shared = 0;
  for (const uint64_t size : sizes) {
    shared += size <= kShared ? wire::aligned(size) : 0;
  }
  const Part memory = take_block(shared);
  auto* place = static_cast<char*>(const_cast<void*>(memory.data));
  Parts parts;
  parts.reserve(sizes.size());
  for (const uint64_t size : sizes) {
    if (size <= kShared) {
      parts.push_back({place, size, memory.owner});
      place += wire::aligned(size);
    } else {
      parts.push_back(take_block(size));
    }
  }
  return parts;
}

}  // namespace rpc_backends::zeromq
