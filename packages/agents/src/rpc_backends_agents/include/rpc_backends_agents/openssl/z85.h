// Z85 (rfc.zeromq.org/spec/32): 32 bytes as 40 characters, as keys and identities are shown.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace rpc_backends::z85 {

using Raw = std::array<unsigned char, 32>;

inline constexpr size_t kTextSize = 40;
// The digits of Z85 (rfc.zeromq.org/spec/32), for numbers to base 85.
inline constexpr std::string_view kDigits =
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";
inline constexpr uint64_t kBase = 85;
// Four bytes, the most significant one first, are five digits.
inline constexpr size_t kBytes = 4, kCharacters = 5;

inline std::string encode(const Raw& raw) {
  std::string text;
  for (size_t i = 0; i < raw.size(); i += kBytes) {
    uint64_t number = 0;
    for (size_t n = 0; n < kBytes; ++n) {
      number = number << 8 | raw[i + n];
    }
    std::array<char, kCharacters> digits{};
    for (size_t n = kCharacters; n-- > 0; number /= kBase) {
      digits[n] = kDigits[number % kBase];
    }
    text.append(digits.data(), digits.size());
  }
  return text;
}

inline std::optional<Raw> decode(std::string_view text) {
  if (text.size() != kTextSize) {
    return std::nullopt;
  }
  Raw raw{};
  for (size_t i = 0; i < text.size() / kCharacters; ++i) {
    uint64_t number = 0;
    for (const char digit : text.substr(i * kCharacters, kCharacters)) {
      const size_t value = kDigits.find(digit);
      if (value == std::string_view::npos) {
        return std::nullopt;
      }
      number = number * kBase + value;
    }
    if (number > UINT32_MAX) {
      return std::nullopt;
    }
    for (size_t n = kBytes; n-- > 0; number >>= 8) {
      raw[i * kBytes + n] = static_cast<unsigned char>(number);
    }
  }
  return raw;
}

}  // namespace rpc_backends::z85
