// What all connections of a worker have in common: the version of TLS, ciphers, and the worker's key and certificate.
#include <openssl/x509.h>

#include "tls.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <utility>

#include "keys.h"
#include "rpc_backends_agents/transport.h"

namespace rpc_backends::zeromq {

namespace {

// Bytes of the longest certificate of a peer. Ours has about 200.
constexpr long kLongestCertificate = 4096;

// The kinds of keys that authorities certify; the last two only sign certificates.
constexpr const char* kKindsOfAuthorities =
    "ecdsa_secp256r1_sha256:ecdsa_secp384r1_sha384:rsa_pss_rsae_sha256:rsa_pss_rsae_sha384:rsa_pss_rsae_sha512:"
    "rsa_pkcs1_sha256:rsa_pkcs1_sha384";

// Whether the processor has instructions for AES.
bool has_aes() {
#if defined(__x86_64__) || defined(__i386__)
  return __builtin_cpu_supports("aes") != 0 && __builtin_cpu_supports("pclmul") != 0;
#elif defined(__aarch64__)
  return (getauxval(AT_HWCAP) & HWCAP_AES) != 0;
#else
  return false;
#endif
}

// The suites, the preferred one first: the side that connects decides.
const char* ciphers(const Crypto& crypto) {
  if (crypto.is_fips() || crypto.chacha20() == nullptr) {
    return "TLS_AES_128_GCM_SHA256";
  }
  return has_aes() ? "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
                   : "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256";
}

struct FreeCertificate {
  void operator()(X509* certificate) const { X509_free(certificate); }
};
using Certificate = std::unique_ptr<X509, FreeCertificate>;

// Its name and dates say nothing, and are not checked.
Certificate certificate_for(const Crypto& crypto, EVP_PKEY* key) {
  Certificate certificate(X509_new_ex(crypto.library(), nullptr));
  X509* const raw = certificate.get();
  if (raw == nullptr || X509_set_version(raw, X509_VERSION_3) != 1 ||
      ASN1_INTEGER_set(X509_get_serialNumber(raw), 1) != 1 ||
      ASN1_TIME_set_string_X509(X509_getm_notBefore(raw), "20000101000000Z") != 1 ||
      ASN1_TIME_set_string_X509(X509_getm_notAfter(raw), "99991231235959Z") != 1 || X509_set_pubkey(raw, key) != 1 ||
      X509_sign(raw, key, crypto.is_fips() ? EVP_sha256() : nullptr) == 0) {
    fail_in_openssl("make a certificate");
  }
  return certificate;
}

}  // namespace

TlsContext::Context TlsContext::make(const Crypto& crypto) {
  Context made(SSL_CTX_new_ex(crypto.library(), nullptr, TLS_method()));
  SSL_CTX* const context = made.get();
  if (context == nullptr) {
    fail_in_openssl("start");
  }
  // What is set here is set also where it is the default, because OpenSSL may be that of the system, with its settings.
  SSL_CTX_set_security_level(context, 2);
  if (SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context, ciphers(crypto)) != 1 || SSL_CTX_set_num_tickets(context, 0) != 1 ||
      SSL_CTX_set1_groups_list(context, crypto.is_fips() ? "P-256" : "X25519") != 1) {
    fail_in_openssl("use TLS 1.3");
  }
#ifdef SSL_OP_NO_RX_CERTIFICATE_COMPRESSION
  SSL_CTX_set_options(context, SSL_OP_NO_RX_CERTIFICATE_COMPRESSION | SSL_OP_NO_TX_CERTIFICATE_COMPRESSION);
#endif
  SSL_CTX_set_cert_verify_callback(context, &TlsChannel::verify, nullptr);
  SSL_CTX_set_keylog_callback(context, &TlsChannel::keep_secret);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_max_cert_list(context, kLongestCertificate);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return made;
}

TlsContext::Context TlsContext::make(const Crypto& crypto, const Certificates& certificates) {
  Context made = make(crypto);
  const std::string kinds = std::string(crypto.is_fips() ? "" : "ed25519:") + kKindsOfAuthorities;
  if (SSL_CTX_set1_sigalgs_list(made.get(), kinds.c_str()) != 1) {
    fail_in_openssl("use these kinds of keys");
  }
  certificates.use_in(made.get());
  return made;
}

TlsContext::TlsContext(const Crypto& crypto, const std::string& public_key, std::string_view secret_key,
                       uint64_t bytes_per_key)
    : crypto_(crypto), bytes_per_key_(bytes_per_key), context_(make(crypto)) {
  const Key key = parse_secret_key(crypto, secret_key, public_key);
  const Certificate certificate = certificate_for(crypto, key.get());
  // No other kinds of keys: a stranger could choose some that cost this worker much time.
  if (SSL_CTX_set1_sigalgs_list(context_.get(), crypto.is_fips() ? "ecdsa_secp256r1_sha256" : "ed25519") != 1 ||
      SSL_CTX_use_certificate(context_.get(), certificate.get()) != 1 ||
      SSL_CTX_use_PrivateKey(context_.get(), key.get()) != 1) {
    fail_in_openssl("use these kinds of keys");
  }
}

TlsContext::TlsContext(const Crypto& crypto, const Certificates& certificates, uint64_t bytes_per_key)
    : crypto_(crypto),
      bytes_per_key_(bytes_per_key),
      revoked_(std::make_shared<Revoked>()),
      context_(make(crypto, certificates)) {}

void TlsContext::renew(const Certificates& certificates) {
  Context made = make(crypto_, certificates);
  const std::lock_guard<std::mutex> lock(mutex_);
  context_.swap(made);
}

std::unique_ptr<TlsChannel> TlsContext::channel(std::unique_ptr<Fd> fd, bool connects,
                                                const std::string& peer_key) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::make_unique<TlsChannel>(crypto_, context_.get(), std::move(fd), connects, peer_key, bytes_per_key_,
                                      revoked_);
}

std::unique_ptr<TlsChannel> TlsContext::connecting(std::unique_ptr<Fd> fd, const std::string& peer_key) const {
  return channel(std::move(fd), true, peer_key);
}

std::unique_ptr<TlsChannel> TlsContext::listening(std::unique_ptr<Fd> fd) const {
  return channel(std::move(fd), false, "");
}

}  // namespace rpc_backends::zeromq
