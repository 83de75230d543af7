// The key pair of a worker's session (Ed25519), in text: Z85, 40 characters for 32 bytes.
#pragma once

#include <openssl/evp.h>

#include <memory>
#include <string>
#include <utility>

namespace rpc_backends::zeromq {

inline constexpr size_t kKeySize = 40;
inline constexpr size_t kRawKeySize = 32;

struct FreeKey {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using Key = std::unique_ptr<EVP_PKEY, FreeKey>;

// Starts OpenSSL, which all functions that use it need; a second call does nothing. The configuration file of the
// system is not read, because it is for another OpenSSL than the one in this package.
void start_openssl();

// Makes a key pair; returns the public and the secret key. Throws TransportError.
std::pair<std::string, std::string> make_keys();

// Throws TransportError if the text is no key, or not the secret key that belongs to `public_key`.
Key parse_secret_key(const std::string& secret_key, const std::string& public_key);

// Whether the text has the form of a key.
bool is_key(const std::string& text);

// Returns the text of a public key; "" if it is of another kind.
std::string public_key_text(EVP_PKEY* key);

}  // namespace rpc_backends::zeromq
