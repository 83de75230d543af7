#include "keys.h"

#include <openssl/crypto.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "rpc_backends_agents/transport.h"

namespace rpc_backends::zeromq {

namespace {

using Raw = std::array<unsigned char, kRawKeySize>;

// The digits of Z85 (rfc.zeromq.org/spec/32), for numbers to base 85.
constexpr std::string_view kDigits =
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";
constexpr uint64_t kBase = 85;
// Four bytes, the most significant one first, are five digits.
constexpr size_t kBytes = 4, kCharacters = 5;

std::string encode(const Raw& raw) {
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

std::optional<Raw> decode(std::string_view text) {
  if (text.size() != kKeySize) {
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

}  // namespace

void start_openssl() {
  // It is not cleaned up at exit: threads may still use it.
  OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT | OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
}

std::pair<std::string, std::string> make_keys() {
  start_openssl();
  const Key key(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"));
  Raw secret{};
  size_t size = secret.size();
  if (!key || EVP_PKEY_get_raw_private_key(key.get(), secret.data(), &size) != 1) {
    throw TransportError("OpenSSL cannot make a key");
  }
  return {public_key_text(key.get()), encode(secret)};
}

Key parse_secret_key(const std::string& secret_key, const std::string& public_key) {
  const std::optional<Raw> raw = decode(secret_key);
  if (!raw || !is_key(public_key)) {
    throw TransportError("a key must be 40 characters of Z85");
  }
  start_openssl();
  Key key(EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, raw->data(), raw->size()));
  if (!key || public_key_text(key.get()) != public_key) {
    throw TransportError("the public key does not belong to the secret key");
  }
  return key;
}

bool is_key(const std::string& text) {
  return decode(text).has_value();
}

std::string public_key_text(EVP_PKEY* key) {
  Raw raw{};
  size_t size = raw.size();
  const bool is_ours = key != nullptr && EVP_PKEY_get_id(key) == EVP_PKEY_ED25519 &&
                       EVP_PKEY_get_raw_public_key(key, raw.data(), &size) == 1 && size == raw.size();
  return is_ours ? encode(raw) : "";
}

}  // namespace rpc_backends::zeromq
