// OpenSSL's algorithms, with or without FIPS. They are apart from those of the rest of the process, so that neither the
// configuration of the system's OpenSSL nor a change by the program has an effect on connections.
#pragma once

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/types.h>

#include <memory>
#include <string>

namespace rpc_backends {

struct FreeKey {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using Key = std::unique_ptr<EVP_PKEY, FreeKey>;

class Crypto {
 public:
  // Returns what all connections share. `fips`: only with OpenSSL's FIPS provider. Throws TransportError if there is
  // none.
  static const Crypto& get(bool fips);

  bool is_fips() const { return fips_; }
  OSSL_LIB_CTX* library() const { return library_.get(); }
  // These are null if there is no such algorithm.
  const EVP_CIPHER* aes_gcm() const { return aes_gcm_; }
  const EVP_CIPHER* chacha20() const { return chacha20_; }
  EVP_KDF* key_derivation() const { return key_derivation_; }

 private:
  explicit Crypto(bool fips);

  struct Free {
    void operator()(OSSL_LIB_CTX* library) const { OSSL_LIB_CTX_free(library); }
  };

  const bool fips_;
  const std::unique_ptr<OSSL_LIB_CTX, Free> library_;
  const EVP_CIPHER* aes_gcm_ = nullptr;
  const EVP_CIPHER* chacha20_ = nullptr;
  EVP_KDF* key_derivation_ = nullptr;
};

// Throws a TransportError with OpenSSL's reason, and clears the errors that OpenSSL keeps for this thread.
[[noreturn]] void fail_in_openssl(const std::string& what);

}  // namespace rpc_backends
