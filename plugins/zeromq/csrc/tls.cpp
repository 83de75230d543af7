#include "tls.h"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "greeting.h"
#include "keys.h"
#include "rpc_backends_agents/transport.h"

namespace rpc_backends::zeromq {

namespace {

// Messages of TLS. The last byte of a change of the key asks the other side for another one if it is 1.
constexpr size_t kUpdateSize = 5;
constexpr char kKeyUpdate[kUpdateSize] = {24, 0, 0, 1, 0};
constexpr char kCloseNotify[] = {1, 0};

// Bytes that are sealed before they are sent in one call: a piece of a large message, with its head. Fewer take more
// calls, and more would not stay in the processor's cache.
constexpr size_t kBatch = 33 * records::kMost;
// Bytes that one call reads from the socket. Below the size from which malloc() asks the kernel for memory.
constexpr size_t kArrivedSize = size_t{96} << 10;
// Data of messages in longer records go to their place directly.
constexpr size_t kShort = 64;
// Records in a row without data that a peer may send. With more it would keep the thread that reads from other work.
constexpr int kMostWithoutData = 16;
// Numbers of cipher suites.
constexpr uint16_t kAesGcm = 0x1301, kChaCha20 = 0x1303;

// The start of a greeting, or an answer to one, that is not encrypted.
constexpr std::string_view kPlain(kForm, 3);

constexpr const char* kOtherKinds = "the two sides have no kind of key in common; set fips alike for all workers";
constexpr const char* kNotAccepted = "the other side does not accept the certificate of this worker; its log says why";
constexpr const char* kOtherKey = "a key is not the one that the other side expects";

// Whether a handshake failed because the two sides have no kind of key or cipher in common.
bool has_nothing_in_common(int reason) {
  return reason == SSL_R_NO_SUITABLE_KEY_SHARE || reason == SSL_R_NO_SUITABLE_GROUPS ||
         reason == SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM || reason == SSL_R_NO_SHARED_CIPHER ||
         reason == SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE;
}

}  // namespace

TlsChannel::TlsChannel(const Crypto& crypto, SSL_CTX* context, std::unique_ptr<Fd> fd, bool connects,
                       std::string peer_key, uint64_t bytes_per_key, std::shared_ptr<const Revoked> revoked)
    : Channel(std::move(fd)),
      crypto_(crypto),
      bytes_per_key_(bytes_per_key),
      connects_(connects),
      revoked_(std::move(revoked)),
      peer_key_(std::move(peer_key)),
      ssl_(SSL_new(context)) {
  BIO* const bio = socket_method() == nullptr ? nullptr : BIO_new(socket_method());
  if (!ssl_ || bio == nullptr || SSL_set_app_data(ssl_.get(), this) != 1) {
    BIO_free(bio);
    fail_in_openssl("make a connection");
  }
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
  if (connects) {
    SSL_set_connect_state(ssl_.get());
  } else {
    SSL_set_accept_state(ssl_.get());
  }
}

TlsChannel::~TlsChannel() = default;

// What OpenSSL's own BIO for sockets does, except that a peer that has closed the connection causes no signal.
const BIO_METHOD* TlsChannel::socket_method() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
    if (made != nullptr) {
      BIO_meth_set_read(made, &TlsChannel::read_socket);
      BIO_meth_set_write(made, &TlsChannel::write_socket);
      BIO_meth_set_ctrl(made, [](BIO*, int command, long, void*) -> long { return command == BIO_CTRL_FLUSH ? 1 : 0; });
    }
    return made;
  }();
  return method;
}

int TlsChannel::read_socket(BIO* bio, char* data, int size) {
  auto* const channel = static_cast<TlsChannel*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const ssize_t got = ::recv(channel->fd(), data, static_cast<size_t>(size), MSG_DONTWAIT);
  if (got > 0 && channel->first_bytes_.size() < kPlain.size()) {
    channel->first_bytes_.append(data, static_cast<size_t>(got));
  }
  if (got == -1 && (errno == EAGAIN || errno == EINTR)) {
    BIO_set_retry_read(bio);
  }
  return static_cast<int>(got);
}

int TlsChannel::write_socket(BIO* bio, const char* data, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent = ::send(static_cast<TlsChannel*>(BIO_get_data(bio))->fd(), data, static_cast<size_t>(size),
                              MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent == -1 && (errno == EAGAIN || errno == EINTR)) {
    BIO_set_retry_write(bio);
  }
  return static_cast<int>(sent);
}

// --- the handshake ----------------------------------------------------------------------------------

int TlsChannel::verify(X509_STORE_CTX* store, void* /*unused*/) {
  const auto* const ssl = static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
  auto* const channel = static_cast<TlsChannel*>(SSL_get_app_data(ssl));
  const bool is_right =
      channel->revoked_ ? channel->check_certificate(store) : channel->check_key(X509_STORE_CTX_get0_cert(store));
  if (is_right) {
    return 1;
  }
  // The same for all reasons, so that a stranger does not learn it.
  X509_STORE_CTX_set_error(store, X509_V_ERR_CERT_REJECTED);
  return 0;
}

// TLS itself checks that the peer has the secret key that belongs to this certificate.
bool TlsChannel::check_key(X509* certificate) {
  const std::string key = public_key_text(crypto_, X509_get0_pubkey(certificate));
  is_wrong_key_ = key.empty() || (connects_ && key != peer_key_);
  if (!is_wrong_key_) {
    peer_key_ = key;
  }
  return !is_wrong_key_;
}

// The side that listens finds out whether the subject is a worker of the group when it has read the greeting.
bool TlsChannel::check_certificate(X509_STORE_CTX* store) {
  Subject subject;
  refusal_ = Certificates::verify(crypto_, store, subject);
  if (refusal_.empty() && revoked_->covers(subject)) {
    refusal_ = "the certificate of " + subject.text() + " is revoked";
  }
  if (refusal_.empty() && connects_ && subject.key != peer_key_) {
    refusal_ = "the process there has the certificate of " + subject.text() + ", which is another worker's";
  }
  if (!refusal_.empty()) {
    return false;
  }
  peer_key_ = subject.key;
  peer_ = std::move(subject);
  return true;
}

// OpenSSL calls this with the secrets of a connection, in the form of key log files: a label, the client's random
// number, and the secret. It has no other way to get them.
void TlsChannel::keep_secret(const SSL* ssl, const char* line) {
  auto* const channel = static_cast<TlsChannel*>(SSL_get_app_data(ssl));
  const std::string_view text(line);
  const bool is_clients = text.starts_with("CLIENT_TRAFFIC_SECRET_0 ");
  if (!is_clients && !text.starts_with("SERVER_TRAFFIC_SECRET_0 ")) {
    return;
  }
  long size = 0;
  unsigned char* const secret = OPENSSL_hexstr2buf(line + text.rfind(' ') + 1, &size);
  if (secret != nullptr) {
    (is_clients == channel->connects_ ? channel->our_secret_ : channel->their_secret_) =
        SecretText(std::string_view(reinterpret_cast<char*>(secret), static_cast<size_t>(size)));
    OPENSSL_clear_free(secret, static_cast<size_t>(size));
  }
}

bool TlsChannel::begin_records() {
  const SSL_CIPHER* const used = SSL_get_current_cipher(ssl_.get());
  const uint16_t id = used == nullptr ? 0 : SSL_CIPHER_get_protocol_id(used);
  const EVP_CIPHER* const cipher = id == kAesGcm ? crypto_.aes_gcm() : id == kChaCha20 ? crypto_.chacha20() : nullptr;
  if (cipher == nullptr || our_secret_.empty() || their_secret_.empty()) {
    return false;
  }
  sealer_.emplace(crypto_, cipher, our_secret_, true);
  opener_.emplace(crypto_, cipher, their_secret_, false);
  our_secret_.erase();
  their_secret_.erase();
  ssl_.reset();
  return true;
}

TlsChannel::Handshake TlsChannel::fail(const std::string& why) {
  failure_ = why;
  ERR_clear_error();  // another user of OpenSSL on this thread would take them for its own
  return Handshake::kFailed;
}

TlsChannel::Handshake TlsChannel::shake_hands() {
  ERR_clear_error();
  errno = 0;
  const int result = SSL_do_handshake(ssl_.get());
  if (result == 1) {
    return begin_records() ? Handshake::kDone : fail("TLS failed: no keys");
  }
  const int what = SSL_get_error(ssl_.get(), result);
  if (what == SSL_ERROR_WANT_READ) {
    return Handshake::kNeedsData;
  }
  if (what == SSL_ERROR_WANT_WRITE) {
    return Handshake::kNeedsRoom;
  }
  const unsigned long error = ERR_peek_error();
  if (first_bytes_.compare(0, kPlain.size(), kPlain) == 0) {
    return fail(kOneEncrypts);
  }
  if (!refusal_.empty()) {
    return fail(refusal_);
  }
  if (revoked_ && ERR_GET_REASON(error) == SSL_R_SSLV3_ALERT_BAD_CERTIFICATE) {
    return fail(kNotAccepted);
  }
  if (is_wrong_key_ || ERR_GET_REASON(error) == SSL_R_SSLV3_ALERT_BAD_CERTIFICATE) {
    return fail(kOtherKey);
  }
  if (what == SSL_ERROR_SYSCALL || what == SSL_ERROR_ZERO_RETURN ||
      ERR_GET_REASON(error) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
    return fail(kEnded);
  }
  if (has_nothing_in_common(ERR_GET_REASON(error))) {
    return fail(kOtherKinds);
  }
  const char* const reason = ERR_reason_error_string(error);
  return fail(std::string("TLS failed: ") + (reason == nullptr ? "unknown error" : reason));
}

// --- reading ----------------------------------------------------------------------------------------

ssize_t TlsChannel::read(const iovec* places, int count, bool& is_drained) {
  Cursor cursor(places, count);
  ssize_t bytes = 0;
  is_drained = false;
  while (taken_ < opened_.size()) {
    const iovec piece = cursor.piece(opened_.size() - taken_);
    if (piece.iov_len == 0) {
      return bytes;
    }
    std::memcpy(piece.iov_base, opened_.data() + taken_, piece.iov_len);
    cursor.advance(piece.iov_len);
    taken_ += piece.iov_len;
    bytes += static_cast<ssize_t>(piece.iov_len);
  }
  opened_.clear();
  taken_ = 0;
  for (bool is_empty = false; !is_over_ && cursor.left(1) > 0;) {
    const auto* const head = reinterpret_cast<const unsigned char*>(arrived_.get()) + begin_;
    const bool has_head = end_ - begin_ >= records::kHead;
    const size_t size = has_head ? static_cast<size_t>(head[3] << 8 | head[4]) : 0;
    if (has_head && (head[0] != static_cast<unsigned char>(records::Type::kData) || size <= records::kTag ||
                     size > records::kLongest)) {
      return bytes > 0 ? (end(EBADMSG), bytes) : end(EBADMSG);
    }
    if (has_head && end_ - begin_ >= records::kHead + size) {
      const size_t data = size - records::kTag - 1;
      if (bytes > 0 && data > cursor.left(data)) {
        return bytes;  // it would have to be copied
      }
      size_t got = 0;
      if (!open_record(size, cursor, got)) {
        return bytes > 0 ? bytes : end(why_over_);
      }
      without_data_ = got > 0 ? 0 : without_data_ + 1;
      if (without_data_ > kMostWithoutData) {
        return bytes > 0 ? (end(EBADMSG), bytes) : end(EBADMSG);
      }
      bytes += static_cast<ssize_t>(got);
      continue;
    }
    if (is_empty) {
      is_drained = true;
      if (begin_ == end_) {
        arrived_.reset();
        begin_ = end_ = 0;
      }
      if (bytes == 0) {
        errno = EAGAIN;
        return -1;
      }
      return bytes;
    }
    const size_t before = end_ - begin_;
    if (!receive()) {
      return bytes > 0 ? bytes : end(why_over_);
    }
    is_empty = end_ - begin_ == before || end_ < kArrivedSize;
  }
  return is_over_ && bytes == 0 ? end(why_over_) : bytes;
}

// Records are longer than their data, so at least as many bytes will arrive in the socket.
void TlsChannel::expect(size_t more) {
  Channel::expect(more - std::min(more, end_ - begin_));
}

// Ends reading for this reason; returns what read() returns.
ssize_t TlsChannel::end(int why) {
  is_over_ = true;
  why_over_ = why;
  ERR_clear_error();
  errno = why;
  return why == 0 ? 0 : -1;
}

// Reads from the socket what it has, or as much as fits. Returns false if the connection has ended.
bool TlsChannel::receive() {
  if (!arrived_) {
    arrived_ = std::make_unique_for_overwrite<char[]>(kArrivedSize);
    begin_ = end_ = 0;
  }
  std::memmove(arrived_.get(), arrived_.get() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  ssize_t got = 0;
  do {
    got = ::recv(fd(), arrived_.get() + end_, kArrivedSize - end_, MSG_DONTWAIT);
  } while (got == -1 && errno == EINTR);
  if (got == -1 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    return true;
  }
  if (got <= 0) {
    end(got == 0 ? ECONNRESET : errno);  // an orderly end is announced
    return false;
  }
  end_ += static_cast<size_t>(got);
  return true;
}

// Opens the record at `begin_`. Sets `got` to the number of bytes at the places. Returns false if reading has ended.
bool TlsChannel::open_record(size_t size, Cursor& places, size_t& got) {
  const char* const record = arrived_.get() + begin_;
  const size_t data = size - records::kTag - 1;
  begin_ += records::kHead + size;
  records::Type type = records::Type::kAlert;  // until the record says it
  if (data > kShort && data <= places.left(data)) {
    got = data;
    if (!opener_->open(record, size, places, type) || type != records::Type::kData) {
      end(EBADMSG);
    }
    return !is_over_;
  }
  opened_.resize(data);
  taken_ = 0;
  const iovec here{opened_.data(), data};
  Cursor cursor(&here, 1);
  if (!opener_->open(record, size, cursor, type)) {
    opened_.clear();
    end(EBADMSG);
    return false;
  }
  if (type != records::Type::kData) {
    const std::string control(opened_.data(), data);
    opened_.clear();
    return handle_control(type, control.data(), control.size());
  }
  while (taken_ < data) {
    const iovec piece = places.piece(data - taken_);
    if (piece.iov_len == 0) {
      break;
    }
    std::memcpy(piece.iov_base, opened_.data() + taken_, piece.iov_len);
    places.advance(piece.iov_len);
    taken_ += piece.iov_len;
    got += piece.iov_len;
  }
  return true;
}

// Returns false if reading has ended.
bool TlsChannel::handle_control(records::Type type, const char* data, size_t size) {
  if (type == records::Type::kAlert && size == sizeof kCloseNotify && data[1] == kCloseNotify[1]) {
    end(0);
    return false;
  }
  const bool is_update = type == records::Type::kHandshake && size == kUpdateSize &&
                         std::memcmp(data, kKeyUpdate, kUpdateSize - 1) == 0 && (data[kUpdateSize - 1] & ~1) == 0;
  if (!is_update) {
    end(EBADMSG);
    return false;
  }
  opener_->replace();
  if (data[kUpdateSize - 1] == 1) {
    must_replace_ = true;
  }
  return true;
}

// --- writing ----------------------------------------------------------------------------------------

ssize_t TlsChannel::write(const iovec* places, int count) {
  if (!flush()) {
    return -1;
  }
  Cursor cursor(places, count);
  const size_t all = cursor.left(kBatch);
  make_room(all);
  size_t bytes = 0;
  while (bytes < all) {
    const size_t size = std::min(all - bytes, records::kMost);
    if (!seal(records::Type::kData, cursor, size)) {
      errno = EPIPE;
      return -1;
    }
    bytes += size;
  }
  if (!flush() && errno != EAGAIN) {
    return -1;
  }
  return static_cast<ssize_t>(bytes);
}

// Makes room for the records of so much data. There must be none in `sealed_` now.
void TlsChannel::make_room(size_t data) {
  const size_t count = (data + records::kMost - 1) / records::kMost;
  // Each of them may come after a change of the key.
  const size_t size = data + count * (records::kAdded + kUpdateSize + records::kAdded);
  if (room_ < size) {
    sealed_.reset();
    room_ = 0;
    sealed_ = std::make_unique_for_overwrite<char[]>(size);
    room_ = size;
  }
}

bool TlsChannel::seal(records::Type type, Cursor& data, size_t size) {
  if (type == records::Type::kData && (with_this_key_ >= bytes_per_key_ || must_replace_.exchange(false))) {
    const iovec place{const_cast<char*>(kKeyUpdate), kUpdateSize};
    Cursor update(&place, 1);
    if (!seal(records::Type::kHandshake, update, kUpdateSize)) {
      return false;
    }
    sealer_->replace();
    with_this_key_ = 0;
  }
  if (!sealer_->seal(type, data, size, sealed_.get() + sealed_size_)) {
    return false;
  }
  sealed_size_ += size + records::kAdded;
  with_this_key_ += size + records::kAdded;
  return true;
}

void TlsChannel::trim() {
  if (sealed_size_ == 0) {
    sealed_.reset();
    room_ = 0;
  }
}

bool TlsChannel::flush() {
  while (sent_ < sealed_size_) {
    const ssize_t now = ::send(fd(), sealed_.get() + sent_, sealed_size_ - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (now == -1 && errno == EINTR) {
      continue;
    }
    if (now == -1) {
      errno = errno == EWOULDBLOCK ? EAGAIN : errno;
      return false;
    }
    sent_ += static_cast<size_t>(now);
  }
  sent_ = sealed_size_ = 0;
  return true;
}

void TlsChannel::finish() {
  if (sealer_ && flush()) {
    const iovec place{const_cast<char*>(kCloseNotify), sizeof kCloseNotify};
    Cursor notify(&place, 1);
    make_room(sizeof kCloseNotify);
    seal(records::Type::kAlert, notify, sizeof kCloseNotify);
    flush();
  }
  Channel::finish();
}

}  // namespace rpc_backends::zeromq
