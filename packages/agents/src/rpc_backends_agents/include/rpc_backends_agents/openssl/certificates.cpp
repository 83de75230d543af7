#include "rpc_backends_agents/openssl/certificates.h"

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <ctime>

#include "rpc_backends_agents/openssl/z85.h"
#include "rpc_backends_agents/transport.h"

namespace rpc_backends {

std::string key_text(const Crypto& crypto, const std::string& identity) {
  z85::Raw raw{};
  size_t size = raw.size();
  if (EVP_Q_digest(crypto.library(), "SHA256", nullptr, identity.data(), identity.size(), raw.data(), &size) != 1) {
    fail_in_openssl("hash an identity");
  }
  return z85::encode(raw);
}

namespace {

// As connections have: OpenSSL's security level in tls_context.cpp.
constexpr int kSecurityLevel = 2;
// Characters of the longest identity.
constexpr size_t kLongestIdentity = 1024;

using Source = std::unique_ptr<BIO, decltype(&BIO_free)>;

Source source_of(std::string_view text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free};
}

// Without a callback OpenSSL would ask the terminal for a password.
int no_password(char* /*buffer*/, int /*size*/, int /*writes*/, void* /*unused*/) {
  return -1;
}

std::string text_of(const ASN1_STRING* value) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(value)), static_cast<size_t>(ASN1_STRING_length(value))};
}

bool is_plain(const std::string& identity) {
  return !identity.empty() && identity.size() <= kLongestIdentity &&
         std::all_of(identity.begin(), identity.end(), [](char letter) { return letter > ' ' && letter < 127; });
}

std::string serial_of(X509* certificate) {
  BIGNUM* const number = ASN1_INTEGER_to_BN(X509_get0_serialNumber(certificate), nullptr);
  char* const digits = number == nullptr ? nullptr : BN_bn2hex(number);
  std::string text = digits == nullptr ? "" : digits;
  OPENSSL_free(digits);
  BN_free(number);
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char digit) { return digit >= 'A' && digit <= 'F' ? static_cast<char>(digit + 32) : digit; });
  text.erase(0, std::min(text.find_first_not_of('0'), text.size()));
  return text;
}

// Throws TransportError.
std::string identity_of(X509* certificate) {
  auto* const names =
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  std::vector<std::string> uris, hosts;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names); ++i) {
    int kind = 0;
    const void* const value = GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names, i), &kind);
    if (kind == GEN_URI || kind == GEN_DNS) {
      (kind == GEN_URI ? uris : hosts).push_back(text_of(static_cast<const ASN1_STRING*>(value)));
    }
  }
  GENERAL_NAMES_free(names);
  ERR_clear_error();
  if (uris.size() > 1) {
    throw TransportError("its certificate has several URIs, so it does not say who it is");
  }
  const std::string identity = !uris.empty() ? uris[0] : !hosts.empty() ? hosts[0] : "";
  if (!is_plain(identity)) {
    throw TransportError("its certificate has no valid URI or DNS name (subjectAltName)");
  }
  return identity;
}

// Throws TransportError.
Subject subject_of(const Crypto& crypto, X509* certificate) {
  Subject subject;
  subject.identity = identity_of(certificate);
  subject.serial = serial_of(certificate);
  subject.key = key_text(crypto, subject.identity);
  return subject;
}

}  // namespace

void Revoked::set(const std::vector<std::string>& names) {
  const std::lock_guard<std::mutex> lock(mutex_);
  names_ = {names.begin(), names.end()};
}

bool Revoked::covers(const Subject& subject) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return names_.count(subject.serial) != 0 || names_.count(subject.identity) != 0;
}

Certificates::List Certificates::read(const Crypto& crypto, const std::string& pem, const char* what) {
  const Source source = source_of(pem);
  List list(sk_X509_new_null());
  if (!source || !list) {
    fail_in_openssl("read certificates");
  }
  for (;;) {
    std::unique_ptr<X509, Free> certificate(X509_new_ex(crypto.library(), nullptr));
    X509* raw = certificate.get();
    if (raw == nullptr || PEM_read_bio_X509(source.get(), &raw, no_password, nullptr) == nullptr) {
      if (raw == nullptr) {
        (void)certificate.release();  // OpenSSL has freed it
      }
      break;
    }
    if (sk_X509_push(list.get(), raw) == 0) {
      fail_in_openssl("read certificates");
    }
    (void)certificate.release();
  }
  const bool is_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (!is_end || sk_X509_num(list.get()) == 0) {
    throw TransportError(std::string(what) + (is_end ? " has no certificate in PEM" : " has an invalid certificate"));
  }
  return list;
}

Certificates::Certificates(const Crypto& crypto, const std::string& chain, std::string_view secret_key,
                           const std::string& authorities)
    : crypto_(crypto), chain_(read(crypto, chain, "the file of certificate")), authorities_(X509_STORE_new()) {
  const Source source = source_of(secret_key);
  key_.reset(PEM_read_bio_PrivateKey_ex(source.get(), nullptr, no_password, nullptr, crypto.library(), nullptr));
  ERR_clear_error();
  if (!key_) {
    throw TransportError("the file of certificate_key has no private key in PEM that needs no password");
  }
  X509* const leaf = sk_X509_value(chain_.get(), 0);
  if (X509_check_private_key(leaf, key_.get()) != 1) {
    ERR_clear_error();
    throw TransportError("the certificate does not belong to the key of certificate_key");
  }
  const List trusted = read(crypto, authorities, "the file of certificate_authority");
  for (int i = 0; i < sk_X509_num(trusted.get()); ++i) {
    if (authorities_ == nullptr || X509_STORE_add_cert(authorities_.get(), sk_X509_value(trusted.get(), i)) != 1) {
      fail_in_openssl("use an authority");
    }
  }
  // What the file has is trusted, also if another authority stands above it.
  X509_STORE_set_flags(authorities_.get(), X509_V_FLAG_PARTIAL_CHAIN);
  subject_ = subject_of(crypto, leaf);
  tm when{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(leaf), &when) != 1) {
    fail_in_openssl("read the date of a certificate");
  }
  expires_ = ::timegm(&when);
  if (static_cast<long>(this->chain().size()) > kLongest) {
    throw TransportError("the certificates of the file of certificate have more than " + std::to_string(kLongest) +
                         " bytes");
  }
}

std::string Certificates::chain() const {
  std::string all;
  for (int i = 0; i < sk_X509_num(chain_.get()); ++i) {
    unsigned char* der = nullptr;
    const int size = i2d_X509(sk_X509_value(chain_.get(), i), &der);
    if (size <= 0) {
      fail_in_openssl("encode a certificate");
    }
    all.append(reinterpret_cast<char*>(der), static_cast<size_t>(size));
    OPENSSL_free(der);
  }
  return all;
}

void Certificates::use_in(SSL_CTX* context) const {
  if (SSL_CTX_use_certificate(context, sk_X509_value(chain_.get(), 0)) != 1 ||
      SSL_CTX_use_PrivateKey(context, key_.get()) != 1) {
    fail_in_openssl("use a certificate");
  }
  SSL_CTX_set1_cert_store(context, authorities_.get());
  for (int i = 1; i < sk_X509_num(chain_.get()); ++i) {
    if (SSL_CTX_add1_chain_cert(context, sk_X509_value(chain_.get(), i)) != 1) {
      fail_in_openssl("use a certificate");
    }
  }
  SSL_CTX_set_max_cert_list(context, kLongest);
}

namespace {

using Digest = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

// Keys of Ed25519 have a hash of their own.
const char* hash_for(EVP_PKEY* key) {
  return EVP_PKEY_is_a(key, "ED25519") == 1 ? nullptr : "SHA256";
}

const unsigned char* bytes(std::string_view data) {
  return reinterpret_cast<const unsigned char*>(data.data());
}

}  // namespace

std::string Certificates::sign(std::string_view data) const {
  const Digest digest(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  size_t size = 0;
  std::string signature;
  bool is_done = digest && EVP_DigestSignInit_ex(digest.get(), nullptr, hash_for(key_.get()), crypto_.library(),
                                                 nullptr, key_.get(), nullptr) == 1;
  is_done = is_done && EVP_DigestSign(digest.get(), nullptr, &size, bytes(data), data.size()) == 1;
  signature.resize(size);
  is_done = is_done && EVP_DigestSign(digest.get(), reinterpret_cast<unsigned char*>(signature.data()), &size,
                                      bytes(data), data.size()) == 1;
  if (!is_done) {
    fail_in_openssl("sign with the key of certificate_key");
  }
  signature.resize(size);
  return signature;
}

std::string Certificates::verify(const Crypto& crypto, X509_STORE_CTX* store, Subject& subject) {
  try {
    subject = subject_of(crypto, X509_STORE_CTX_get0_cert(store));
  } catch (const TransportError& error) {
    return error.what();
  }
  if (X509_verify_cert(store) == 1) {
    return "";
  }
  const int why = X509_STORE_CTX_get_error(store);
  ERR_clear_error();
  return "the certificate of " + subject.text() + " is not accepted: " + X509_verify_cert_error_string(why);
}

Subject Certificates::check(std::string_view chain, std::string_view signature, std::string_view data) const {
  if (chain.size() > static_cast<size_t>(kLongest)) {
    throw TransportError("its certificates have more than " + std::to_string(kLongest) + " bytes");
  }
  List list(sk_X509_new_null());
  const unsigned char* at = bytes(chain);
  const unsigned char* const end = at + chain.size();
  while (list && at < end) {
    X509* raw = X509_new_ex(crypto_.library(), nullptr);
    if (d2i_X509(&raw, &at, end - at) == nullptr || sk_X509_push(list.get(), raw) == 0) {
      X509_free(raw);
      ERR_clear_error();
      throw TransportError("its certificates are invalid");
    }
  }
  if (!list || sk_X509_num(list.get()) == 0) {
    throw TransportError("it has no certificate");
  }
  X509* const leaf = sk_X509_value(list.get(), 0);
  const std::unique_ptr<X509_STORE_CTX, decltype(&X509_STORE_CTX_free)> store(
      X509_STORE_CTX_new_ex(crypto_.library(), nullptr), &X509_STORE_CTX_free);
  if (!store || X509_STORE_CTX_init(store.get(), authorities_.get(), leaf, list.get()) != 1 ||
      X509_STORE_CTX_set_default(store.get(), "ssl_client") != 1) {
    fail_in_openssl("verify a certificate");
  }
  X509_VERIFY_PARAM_set_auth_level(X509_STORE_CTX_get0_param(store.get()), kSecurityLevel);
  Subject subject;
  if (const std::string why = verify(crypto_, store.get(), subject); !why.empty()) {
    throw TransportError(why);
  }
  // Only the key of a certificate that has been verified is used: another could be chosen to take much time.
  EVP_PKEY* const key = X509_get0_pubkey(leaf);
  const Digest digest(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  const bool is_right =
      digest && key != nullptr &&
      EVP_DigestVerifyInit_ex(digest.get(), nullptr, hash_for(key), crypto_.library(), nullptr, key, nullptr) == 1 &&
      EVP_DigestVerify(digest.get(), bytes(signature), signature.size(), bytes(data), data.size()) == 1;
  ERR_clear_error();
  if (!is_right) {
    throw TransportError("it is not signed with the key of " + subject.text());
  }
  return subject;
}

}  // namespace rpc_backends
