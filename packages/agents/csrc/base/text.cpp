#include "base/text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace rpc_backends {
namespace {

// The bytes of the first character of a text that is not empty; 0 if the text does not begin with one (RFC 3629).
size_t first_character(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) {
    return 1;
  }
  const size_t size = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  if (size == 0 || text.size() < size) {
    return 0;
  }
  uint32_t character = first & (0x7fU >> size);
  for (const char following : text.substr(1, size - 1)) {
    const auto byte = static_cast<unsigned char>(following);
    if ((byte & 0xc0U) != 0x80) {
      return 0;
    }
    character = character << 6U | (byte & 0x3fU);
  }
  const bool is_longer_than_needed = (size == 3 && character < 0x800) || (size == 4 && character < 0x10000);
  const bool is_surrogate = character >= 0xd800 && character < 0xe000;
  return is_longer_than_needed || is_surrogate || character > 0x10ffff ? 0 : size;
}

}  // namespace

std::string valid_utf8(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const size_t size = first_character(text);
    if (size > 0) {
      valid += text.substr(0, size);
    } else {
      char escaped[5];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned char>(text[0]));
      valid += escaped;
    }
    text.remove_prefix(std::max<size_t>(size, 1));
  }
  return valid;
}

}  // namespace rpc_backends
