// Certificates for the unit tests and the fuzzers, and an authority that signs them.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "rpc_backends_agents/openssl/certificates.h"

namespace rpc_backends {

class Authority {
 public:
  // What a certificate says.
  struct Wanted {
    std::string names;        // subjectAltName in OpenSSL's words, such as "URI:spiffe://x/a" or "DNS:a"
    long from = -3600;        // seconds from now
    long until = 3600;        // the same
    long serial = 7;          // its number
    const char* kind = "EC";  // of its key: EC, ED25519, or RSA
    const char* usage = "clientAuth,serverAuth";
  };

  explicit Authority(const std::string& name = "authority") : key_(make_key("EC")), name_(name) {
    certificate_.reset(sign({"DNS:" + name, -7200, 7200, 1, "EC", nullptr}, key_.get(), true));
  }

  std::string pem() const {
    return text([&](BIO* out) { return PEM_write_bio_X509(out, certificate_.get()); });
  }

  std::shared_ptr<Certificates> certify(const Wanted& wanted, const std::string& trusted) const {
    const std::unique_ptr<EVP_PKEY, FreeKey> key = make_key(wanted.kind);
    const std::unique_ptr<X509, FreeCertificate> certificate(sign(wanted, key.get(), false));
    const std::string chain = text([&](BIO* out) { return PEM_write_bio_X509(out, certificate.get()); });
    const std::string secret =
        text([&](BIO* out) { return PEM_write_bio_PrivateKey(out, key.get(), nullptr, nullptr, 0, nullptr, nullptr); });
    return std::make_shared<Certificates>(Crypto::get(false), chain, secret, trusted);
  }

  std::shared_ptr<Certificates> certify(const Wanted& wanted) const { return certify(wanted, pem()); }

 private:
  struct FreeCertificate {
    void operator()(X509* certificate) const { X509_free(certificate); }
  };

  static void check(bool holds) {
    if (!holds) {
      throw std::runtime_error("OpenSSL failed");
    }
  }

  static std::unique_ptr<EVP_PKEY, FreeKey> make_key(const std::string& kind) {
    EVP_PKEY* const key = kind == "EC"    ? EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256")
                          : kind == "RSA" ? EVP_PKEY_Q_keygen(nullptr, nullptr, "RSA", size_t{2048})
                                          : EVP_PKEY_Q_keygen(nullptr, nullptr, kind.c_str());
    check(key != nullptr);
    return std::unique_ptr<EVP_PKEY, FreeKey>(key);
  }

  template <typename Write>
  static std::string text(const Write& write) {
    const std::unique_ptr<BIO, decltype(&BIO_free)> out(BIO_new(BIO_s_mem()), &BIO_free);
    check(write(out.get()) == 1);
    char* data = nullptr;
    const long size = BIO_get_mem_data(out.get(), &data);
    return {data, static_cast<size_t>(size)};
  }

  static void add(X509* certificate, int kind, const std::string& value) {
    X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, kind, value.c_str());
    check(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1);
    X509_EXTENSION_free(extension);
  }

  X509* sign(const Wanted& wanted, EVP_PKEY* key, bool is_authority) const {
    X509* const made = X509_new();
    check(X509_set_version(made, X509_VERSION_3) == 1 &&
          ASN1_INTEGER_set(X509_get_serialNumber(made), wanted.serial) == 1 && X509_set_pubkey(made, key) == 1);
    X509_gmtime_adj(X509_getm_notBefore(made), wanted.from);
    X509_gmtime_adj(X509_getm_notAfter(made), wanted.until);
    const auto* const issuer = reinterpret_cast<const unsigned char*>(name_.c_str());
    X509_NAME_add_entry_by_txt(X509_get_issuer_name(made), "CN", MBSTRING_ASC, issuer, -1, -1, 0);
    if (is_authority) {
      X509_NAME_add_entry_by_txt(X509_get_subject_name(made), "CN", MBSTRING_ASC, issuer, -1, -1, 0);
      add(made, NID_basic_constraints, "critical,CA:TRUE");
      add(made, NID_key_usage, "critical,keyCertSign");
    }
    if (!wanted.names.empty()) {
      add(made, NID_subject_alt_name, wanted.names);
    }
    if (wanted.usage != nullptr) {
      add(made, NID_ext_key_usage, wanted.usage);
    }
    check(X509_sign(made, key_.get(), EVP_sha256()) > 0);
    return made;
  }

  const std::unique_ptr<EVP_PKEY, FreeKey> key_;
  const std::string name_;
  std::unique_ptr<X509, FreeCertificate> certificate_;
};

}  // namespace rpc_backends
