// Parts of messages for the unit tests.
#pragma once

#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "rpc_backends_agents/transport.h"

namespace rpc_backends {

// A part with a copy of these bytes. The block has exactly their size, so that AddressSanitizer sees a read beyond it.
inline Part part_with(std::string_view bytes) {
  const std::shared_ptr<void> block(std::malloc(bytes.size()), std::free);
  if (!bytes.empty()) {
    std::memcpy(block.get(), bytes.data(), bytes.size());
  }
  return {block.get(), bytes.size(), block};
}

inline Parts parts_with(std::initializer_list<std::string> texts) {
  Parts parts;
  for (const std::string& text : texts) {
    parts.push_back(part_with(text));
  }
  return parts;
}

inline std::string bytes_in(const Part& part) {
  return {static_cast<const char*>(part.data), part.size};
}

}  // namespace rpc_backends
