#include "keys.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/x509.h>

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

std::pair<std::string, SecretText> make_keys(const Crypto& crypto) {
  const Key key(crypto.is_fips() ? EVP_PKEY_Q_keygen(crypto.library(), nullptr, "EC", "P-256")
                                 : EVP_PKEY_Q_keygen(crypto.library(), nullptr, "ED25519"));
  unsigned char* raw = nullptr;
  const int size = key ? i2d_PrivateKey(key.get(), &raw) : -1;
  if (size <= 0) {
    fail_in_openssl("make a key");
  }
  SecretText secret(std::string_view(reinterpret_cast<char*>(raw), static_cast<size_t>(size)));
  OPENSSL_clear_free(raw, static_cast<size_t>(size));
  return {public_key_text(crypto, key.get()), std::move(secret)};
}

Key parse_secret_key(const Crypto& crypto, std::string_view secret_key, const std::string& public_key) {
  const auto* raw = reinterpret_cast<const unsigned char*>(secret_key.data());
  Key key(d2i_AutoPrivateKey_ex(nullptr, &raw, static_cast<long>(secret_key.size()), crypto.library(), nullptr));
  ERR_clear_error();
  if (!is_key(public_key) || !key) {
    throw TransportError("a public key must be 40 characters of Z85, and a secret key must be in DER");
  }
  if (public_key_text(crypto, key.get()) != public_key) {
    throw TransportError("the public key does not belong to the secret key");
  }
  return key;
}

bool is_key(const std::string& text) {
  return decode(text).has_value();
}

std::string key_text(const Crypto& crypto, const std::string& identity) {
  Raw raw{};
  size_t size = raw.size();
  if (EVP_Q_digest(crypto.library(), "SHA256", nullptr, identity.data(), identity.size(), raw.data(), &size) != 1) {
    fail_in_openssl("hash an identity");
  }
  return encode(raw);
}

std::string public_key_text(const Crypto& crypto, EVP_PKEY* key) {
  Raw raw{};
  size_t size = raw.size();
  if (key == nullptr || EVP_PKEY_is_a(key, crypto.is_fips() ? "EC" : "ED25519") != 1) {
    return "";
  }
  if (!crypto.is_fips()) {
    return EVP_PKEY_get_raw_public_key(key, raw.data(), &size) == 1 ? encode(raw) : "";
  }
  unsigned char* der = nullptr;
  const int length = i2d_PUBKEY(key, &der);
  const bool is_done = length > 0 && EVP_Q_digest(crypto.library(), "SHA256", nullptr, der, static_cast<size_t>(length),
                                                  raw.data(), &size) == 1;
  OPENSSL_free(der);
  return is_done ? encode(raw) : "";
}

}  // namespace rpc_backends::zeromq
