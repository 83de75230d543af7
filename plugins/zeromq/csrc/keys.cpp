#include "keys.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/x509.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "rpc_backends_agents/openssl/z85.h"
#include "rpc_backends_agents/transport.h"

namespace rpc_backends::zeromq {

namespace {

using z85::encode, z85::decode;
using z85::Raw;

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
