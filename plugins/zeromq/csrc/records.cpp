#include "records.h"

#include <openssl/hmac.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cstring>

#include "rpc_backends_agents/transport.h"

namespace rpc_backends::zeromq {

using records::kHead;
using records::kTag;
using records::Type;

namespace {

// HKDF-Expand-Label with SHA-256 and without a context (RFC 8446, section 7.1); `size` is at most 32.
SecretText expand(std::string_view secret, const std::string& label, size_t size) {
  const std::string full = "tls13 " + label;
  std::string info{'\0', static_cast<char>(size), static_cast<char>(full.size())};
  info += full;
  info += {'\0', '\1'};
  SecretText digest(SHA256_DIGEST_LENGTH);
  if (HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
           reinterpret_cast<const unsigned char*>(info.data()), info.size(),
           reinterpret_cast<unsigned char*>(digest.data()), nullptr) == nullptr) {
    throw TransportError("OpenSSL cannot derive a key");
  }
  return SecretText(std::string_view(digest).substr(0, size));
}

unsigned char* bytes(void* memory) {
  return static_cast<unsigned char*>(memory);
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

RecordKey::RecordKey(const EVP_CIPHER* cipher, std::string_view secret, bool seals)
    : cipher_(cipher), seals_(seals), secret_(secret), context_(EVP_CIPHER_CTX_new()) {
  set_key();
}

void RecordKey::replace() {
  secret_ = expand(secret_, "traffic upd", secret_.size());
  set_key();
}

void RecordKey::set_key() {
  SecretText key = expand(secret_, "key", static_cast<size_t>(EVP_CIPHER_get_key_length(cipher_)));
  SecretText base = expand(secret_, "iv", base_.size());
  std::copy_n(base.data(), base_.size(), base_.begin());
  number_ = 0;
  if (context_ == nullptr ||
      EVP_CipherInit_ex(context_.get(), cipher_, nullptr, bytes(key.data()), nullptr, seals_ ? 1 : 0) != 1) {
    throw TransportError("OpenSSL cannot use a key");
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
