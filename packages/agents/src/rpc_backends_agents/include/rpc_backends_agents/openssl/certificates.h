// Certificates (X.509) by which workers prove who they are: that of this worker, the authorities that it trusts, and
// those that are revoked. OpenSSL verifies the certificates of peers.
//
// The identity in a certificate is its URI (a SPIFFE id, for example), or else the first of its DNS names.
#pragma once

#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "rpc_backends_agents/openssl/crypto.h"

namespace rpc_backends {

// What a certificate says of its owner.
struct Subject {
  std::string identity;
  std::string serial;  // the number of the certificate, in hexadecimal digits
  std::string key;     // the identity in the form of a key, by which workers are known

  std::string text() const { return identity + " (certificate " + serial + ")"; }
};

// Returns a text in the form of that of a public key (z85.h), which stands for an identity. Throws TransportError.
std::string key_text(const Crypto& crypto, const std::string& identity);

// The certificates that no worker may use any more. Any thread may use it.
class Revoked {
 public:
  // Identities, and numbers of certificates as in Subject.
  void set(const std::vector<std::string>& names);
  bool covers(const Subject& subject) const;

 private:
  mutable std::mutex mutex_;
  std::unordered_set<std::string> names_;
};

class Certificates {
 public:
  // The bytes of the certificates of one worker.
  static constexpr long kLongest = 16384;

  // Texts in PEM: the certificate of this worker and those between it and an authority, its secret key, and the
  // authorities. Throws TransportError that says what is wrong; a certificate that has expired is not.
  Certificates(const Crypto& crypto, const std::string& chain, std::string_view secret_key,
               const std::string& authorities);

  const Subject& subject() const { return subject_; }
  // Seconds since 1970.
  int64_t expires() const { return expires_; }
  // The certificate and those behind it, in DER.
  std::string chain() const;

  // Makes connections show the certificate, and accept those of the authorities.
  void use_in(SSL_CTX* context) const;

  std::string sign(std::string_view data) const;

  // Returns whose signature it is. `chain`: as chain() gives it. Throws TransportError with the reason.
  Subject check(std::string_view chain, std::string_view signature, std::string_view data) const;

  // Verifies the certificate of a peer of a connection. Returns the reason against it; "" if there is none.
  static std::string verify(const Crypto& crypto, X509_STORE_CTX* store, Subject& subject);

 private:
  struct Free {
    void operator()(X509* certificate) const { X509_free(certificate); }
    void operator()(X509_STORE* store) const { X509_STORE_free(store); }
    void operator()(STACK_OF(X509) * certificates) const { sk_X509_pop_free(certificates, X509_free); }
  };
  using List = std::unique_ptr<STACK_OF(X509), Free>;

  static List read(const Crypto& crypto, const std::string& pem, const char* what);

  const Crypto& crypto_;
  List chain_;
  Key key_;
  std::unique_ptr<X509_STORE, Free> authorities_;
  Subject subject_;
  int64_t expires_ = 0;
};

}  // namespace rpc_backends
