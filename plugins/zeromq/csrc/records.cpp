#include "records.h"

#include <openssl/core_names.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <algorithm>
#include <cstring>

namespace rpc_backends::zeromq {

using records::kHead;
using records::kTag;
using records::Type;

namespace {

unsigned char* bytes(void* memory) {
  return static_cast<unsigned char*>(memory);
}

// HKDF-Expand-Label with SHA-256 and without a context (RFC 8446, section 7.1).
SecretText expand(const Crypto& crypto, std::string_view secret, std::string_view label, size_t size) {
  struct Free {
    void operator()(EVP_KDF_CTX* context) const { EVP_KDF_CTX_free(context); }
  };
  const auto octets = [](const char* name, std::string_view text) {
    return OSSL_PARAM_construct_octet_string(name, const_cast<char*>(text.data()), text.size());
  };
  char digest[] = "SHA256";
  int mode = EVP_KDF_HKDF_MODE_EXPAND_ONLY;
  const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &mode),
                                   OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
                                   octets(OSSL_KDF_PARAM_KEY, secret),
                                   octets(OSSL_KDF_PARAM_PREFIX, "tls13 "),
                                   octets(OSSL_KDF_PARAM_LABEL, label),
                                   OSSL_PARAM_construct_end()};
  const std::unique_ptr<EVP_KDF_CTX, Free> context(EVP_KDF_CTX_new(crypto.key_derivation()));
  SecretText key(size);
  if (!context || EVP_KDF_derive(context.get(), bytes(key.data()), size, parameters) != 1) {
    fail_in_openssl("derive a key");
  }
  return key;
}

}  // namespace

iovec Cursor::piece(size_t most) const {
  if (place_ == end_) {
    return {nullptr, 0};
  }
  return {static_cast<char*>(place_->iov_base) + offset_, std::min(most, place_->iov_len - offset_)};
}

void Cursor::advance(size_t size) {
  while (size > 0) {
    const size_t now = std::min(size, place_->iov_len - offset_);
    size -= now;
    offset_ += now;
    skip_full();
  }
}

void Cursor::skip_full() {
  while (place_ != end_ && offset_ == place_->iov_len) {
    ++place_;
    offset_ = 0;
  }
}

size_t Cursor::left(size_t most) const {
  size_t size = 0, offset = offset_;
  for (const iovec* place = place_; place != end_ && size < most; ++place, offset = 0) {
    size += place->iov_len - offset;
  }
  return std::min(size, most);
}

RecordKey::RecordKey(const Crypto& crypto, const EVP_CIPHER* cipher, std::string_view secret, bool seals)
    : crypto_(crypto), cipher_(cipher), seals_(seals), secret_(secret), context_(EVP_CIPHER_CTX_new()) {
  set_key();
}

void RecordKey::replace() {
  secret_ = expand(crypto_, secret_, "traffic upd", secret_.size());
  set_key();
}

void RecordKey::set_key() {
  SecretText key = expand(crypto_, secret_, "key", static_cast<size_t>(EVP_CIPHER_get_key_length(cipher_)));
  SecretText base = expand(crypto_, secret_, "iv", base_.size());
  std::copy_n(base.data(), base_.size(), base_.begin());
  number_ = 0;
  if (context_ == nullptr ||
      EVP_CipherInit_ex(context_.get(), cipher_, nullptr, bytes(key.data()), nullptr, seals_ ? 1 : 0) != 1) {
    fail_in_openssl("use a key");
  }
}

// Begins the next record; its head is authenticated, but not encrypted.
bool RecordKey::begin(const char* head) {
  std::array<unsigned char, 12> nonce = base_;
  for (size_t i = 0; i < sizeof number_; ++i) {
    nonce[nonce.size() - 1 - i] ^= static_cast<unsigned char>(number_ >> (8 * i));
  }
  ++number_;
  int size = 0;
  return EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce.data(), -1) == 1 &&
         EVP_CipherUpdate(context_.get(), nullptr, &size, reinterpret_cast<const unsigned char*>(head), kHead) == 1;
}

bool RecordKey::seal(Type type, Cursor& data, size_t size, char* to) {
  const size_t after_head = size + 1 + kTag;
  const char head[kHead] = {static_cast<char>(Type::kData), 3, 3, static_cast<char>(after_head >> 8),
                            static_cast<char>(after_head)};
  std::memcpy(to, head, kHead);
  if (!begin(to)) {
    return false;
  }
  unsigned char* out = bytes(to) + kHead;
  int done = 0;
  while (size > 0) {
    const iovec piece = data.piece(size);
    if (EVP_CipherUpdate(context_.get(), out, &done, bytes(piece.iov_base), static_cast<int>(piece.iov_len)) != 1) {
      return false;
    }
    out += piece.iov_len;
    size -= piece.iov_len;
    data.advance(piece.iov_len);
  }
  const auto last = static_cast<unsigned char>(type);
  return EVP_CipherUpdate(context_.get(), out, &done, &last, 1) == 1 &&
         EVP_CipherFinal_ex(context_.get(), out + 1, &done) == 1 &&
         EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, kTag, out + 1) == 1;
}

bool RecordKey::open(const char* record, size_t size, Cursor& places, Type& type) {
  if (!begin(record)) {
    return false;
  }
  const auto* in = reinterpret_cast<const unsigned char*>(record) + kHead;
  int done = 0;
  for (size_t left = size - 1 - kTag; left > 0;) {
    const iovec piece = places.piece(left);
    if (EVP_CipherUpdate(context_.get(), bytes(piece.iov_base), &done, in, static_cast<int>(piece.iov_len)) != 1) {
      return false;
    }
    in += piece.iov_len;
    left -= piece.iov_len;
    places.advance(piece.iov_len);
  }
  unsigned char last = 0, unused = 0;
  const bool is_genuine =
      EVP_CipherUpdate(context_.get(), &last, &done, in, 1) == 1 &&
      EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, kTag, const_cast<unsigned char*>(in + 1)) == 1 &&
      EVP_CipherFinal_ex(context_.get(), &unused, &done) == 1;
  type = static_cast<Type>(last);
  return is_genuine;
}

}  // namespace rpc_backends::zeromq
