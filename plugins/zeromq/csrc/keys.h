// The key pair of a worker's session, as text and in DER: Ed25519, or ECDSA with P-256 for FIPS.
//
// The text of a public key has 40 characters: Z85 of 32 bytes, which are the key of Ed25519, or the SHA-256 of a key of
// P-256 as certificates hold it.
#pragma once

#include <openssl/evp.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "rpc_backends_agents/openssl/crypto.h"
#include "secret_text.h"

namespace rpc_backends::zeromq {

inline constexpr size_t kKeySize = 40;
inline constexpr size_t kRawKeySize = 32;

// Makes a key pair; returns the text of the public key, and the secret key in DER. Throws TransportError.
std::pair<std::string, SecretText> make_keys(const Crypto& crypto);

// Throws TransportError if this is not the secret key that belongs to `public_key`.
Key parse_secret_key(const Crypto& crypto, std::string_view secret_key, const std::string& public_key);

// Whether the text has the form of a key.
bool is_key(const std::string& text);

// Returns the text of a public key; "" if it is of another kind.
std::string public_key_text(const Crypto& crypto, EVP_PKEY* key);

}  // namespace rpc_backends::zeromq
