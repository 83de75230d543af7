#include "tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "greeting.h"
#include "keys.h"
#include "rpc_backends_agents/transport.h"

namespace rpc_backends::zeromq {

namespace {

// Bytes of the largest record.
constexpr size_t kRecord = SSL3_RT_MAX_PLAIN_LENGTH;
// Bytes that are sealed before they are sent, and that one call reads from the socket. Measured: with records of
// 16 KiB in a call each, a message of 64 MiB takes 1.3 times as long.
constexpr size_t kBatch = size_t{256} << 10;
// Bytes of memory for sealed data that an idle connection keeps.
constexpr size_t kMostKept = size_t{32} << 10;
// Bytes of the longest certificate of a peer. Ours has about 200.
constexpr long kLongestCertificate = 4096;

constexpr const char* kOtherKey = "a key is not the one that the other side expects";

[[noreturn]] void fail(const char* what) {
  char text[256] = "unknown error";
  if (const unsigned long error = ERR_get_error(); error != 0) {
    ERR_error_string_n(error, text, sizeof text);
  }
  throw TransportError(std::string("OpenSSL cannot ") + what + ": " + text);
}

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

struct FreeCertificate {
  void operator()(X509* certificate) const { X509_free(certificate); }
};
using Certificate = std::unique_ptr<X509, FreeCertificate>;

// Its name and dates say nothing, and are not checked.
Certificate certificate_for(EVP_PKEY* key) {
  Certificate certificate(X509_new());
  X509* const raw = certificate.get();
  if (raw == nullptr || X509_set_version(raw, X509_VERSION_3) != 1 ||
      ASN1_INTEGER_set(X509_get_serialNumber(raw), 1) != 1 ||
      ASN1_TIME_set_string_X509(X509_getm_notBefore(raw), "20000101000000Z") != 1 ||
      ASN1_TIME_set_string_X509(X509_getm_notAfter(raw), "99991231235959Z") != 1 || X509_set_pubkey(raw, key) != 1 ||
      X509_sign(raw, key, nullptr) == 0) {
    fail("make a certificate");
  }
  return certificate;
}

}  // namespace

TlsContext::TlsContext(const std::string& public_key, const std::string& secret_key, uint64_t bytes_per_key)
    : bytes_per_key_(bytes_per_key) {
  const Key key = parse_secret_key(secret_key, public_key);
  // The configuration file of the system is for another OpenSSL than the one in this package.
  OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
  context_.reset(SSL_CTX_new(TLS_method()));
  SSL_CTX* const context = context_.get();
  if (context == nullptr) {
    fail("start");
  }
  const Certificate certificate = certificate_for(key.get());
  const char* const suites = has_aes() ? "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
                                       : "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256";
  if (SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) != 1 || SSL_CTX_set_ciphersuites(context, suites) != 1 ||
      SSL_CTX_set_num_tickets(context, 0) != 1 || SSL_CTX_use_certificate(context, certificate.get()) != 1 ||
      SSL_CTX_use_PrivateKey(context, key.get()) != 1) {
    fail("use TLS 1.3");
  }
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context,
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, kBatch);
  SSL_CTX_set_max_cert_list(context, kLongestCertificate);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
}

std::unique_ptr<TlsChannel> TlsContext::connecting(std::unique_ptr<Fd> fd, const std::string& peer_key) const {
  return std::make_unique<TlsChannel>(context_.get(), std::move(fd), true, peer_key, bytes_per_key_);
}

std::unique_ptr<TlsChannel> TlsContext::listening(std::unique_ptr<Fd> fd) const {
  return std::make_unique<TlsChannel>(context_.get(), std::move(fd), false, "", bytes_per_key_);
}

TlsChannel::TlsChannel(SSL_CTX* context, std::unique_ptr<Fd> fd, bool connects, std::string peer_key,
                       uint64_t bytes_per_key)
    : Channel(std::move(fd)),
      bytes_per_key_(bytes_per_key),
      connects_(connects),
      peer_key_(std::move(peer_key)),
      ssl_(SSL_new(context)) {
  SSL_CTX_set_cert_verify_callback(context, &TlsChannel::verify, nullptr);
  BIO* const arriving = BIO_new_socket(this->fd(), BIO_NOCLOSE);
  BIO* const leaving = keeping() == nullptr ? nullptr : BIO_new(keeping());
  if (!ssl_ || arriving == nullptr || leaving == nullptr || SSL_set_app_data(ssl_.get(), this) != 1) {
    BIO_free(arriving);
    BIO_free(leaving);
    zeromq::fail("make a connection");
  }
  BIO_set_data(leaving, this);
  BIO_set_init(leaving, 1);
  SSL_set_bio(ssl_.get(), arriving, leaving);
  if (connects) {
    SSL_set_connect_state(ssl_.get());
  } else {
    SSL_set_accept_state(ssl_.get());
  }
}

TlsChannel::~TlsChannel() = default;

// Where `ssl_` writes: memory, so that many records are sent in one call.
const BIO_METHOD* TlsChannel::keeping() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "records to be sent");
    if (made != nullptr) {
      BIO_meth_set_write(made, &TlsChannel::keep_sealed);
      BIO_meth_set_ctrl(made, [](BIO*, int command, long, void*) -> long { return command == BIO_CTRL_FLUSH ? 1 : 0; });
    }
    return made;
  }();
  return method;
}

int TlsChannel::keep_sealed(BIO* bio, const char* data, int size) {
  auto* const channel = static_cast<TlsChannel*>(BIO_get_data(bio));
  try {
    channel->sealed_.insert(channel->sealed_.end(), data, data + size);
  } catch (const std::bad_alloc&) {
    return -1;
  }
  return size;
}

// --- the handshake ----------------------------------------------------------------------------------

int TlsChannel::verify(X509_STORE_CTX* store, void* /*unused*/) {
  const auto* const ssl = static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
  auto* const channel = static_cast<TlsChannel*>(SSL_get_app_data(ssl));
  if (channel->check_key(X509_STORE_CTX_get0_cert(store))) {
    return 1;
  }
  X509_STORE_CTX_set_error(store, X509_V_ERR_CERT_REJECTED);
  return 0;
}

// TLS itself checks that the peer has the secret key that belongs to this certificate.
bool TlsChannel::check_key(X509* certificate) {
  const std::string key = public_key_text(X509_get0_pubkey(certificate));
  is_wrong_key_ = key.empty() || (connects_ && key != peer_key_);
  if (!is_wrong_key_) {
    peer_key_ = key;
  }
  return !is_wrong_key_;
}

TlsChannel::Handshake TlsChannel::fail(const std::string& why) {
  failure_ = why;
  send_sealed();  // an alert says why
  return Handshake::kFailed;
}

TlsChannel::Handshake TlsChannel::shake_hands() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ERR_clear_error();
  errno = 0;
  const int result = SSL_do_handshake(ssl_.get());
  const int what = result == 1 ? SSL_ERROR_NONE : SSL_get_error(ssl_.get(), result);
  if (what == SSL_ERROR_NONE || what == SSL_ERROR_WANT_READ || what == SSL_ERROR_WANT_WRITE) {
    if (!send_sealed()) {
      return errno == EAGAIN ? Handshake::kNeedsRoom : fail(kEnded);
    }
    return what == SSL_ERROR_NONE ? Handshake::kDone : Handshake::kNeedsData;
  }
  const unsigned long error = ERR_peek_error();
  switch (ERR_GET_REASON(error)) {
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
      return fail(kOtherKey);
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
      return fail(kOneEncrypts);
    default:
      break;
  }
  if (is_wrong_key_) {
    return fail(kOtherKey);
  }
  if (what == SSL_ERROR_SYSCALL || what == SSL_ERROR_ZERO_RETURN ||
      ERR_GET_REASON(error) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
    return fail(kEnded);
  }
  const char* const reason = ERR_reason_error_string(error);
  return fail(std::string("TLS failed: ") + (reason == nullptr ? "unknown error" : reason));
}

// --- data -------------------------------------------------------------------------------------------

ssize_t TlsChannel::read(const iovec* places, int count) {
  size_t bytes = 0;
  for (int i = 0; i < count; ++i) {
    auto* const place = static_cast<char*>(places[i].iov_base);
    for (size_t offset = 0; offset < places[i].iov_len;) {
      // Another thread may write between two batches.
      const std::lock_guard<std::mutex> lock(mutex_);
      const size_t most = std::min(places[i].iov_len, offset + kBatch);
      while (offset < most) {
        size_t got = 0;
        if (!read_record(place + offset, most - offset, got)) {
          return bytes > 0 ? static_cast<ssize_t>(bytes) : -1;
        }
        if (got == 0) {
          return static_cast<ssize_t>(bytes);
        }
        offset += got;
        bytes += got;
      }
    }
  }
  return static_cast<ssize_t>(bytes);
}

// Sets `got` to 0 at the end of the data. Returns false and sets errno on failure. Needs the lock.
bool TlsChannel::read_record(char* place, size_t size, size_t& got) {
  got = 0;
  if (is_over_) {
    errno = why_over_;
    return why_over_ == 0;
  }
  ERR_clear_error();
  errno = 0;
  if (SSL_read_ex(ssl_.get(), place, size, &got) == 1) {
    return true;
  }
  const int what = SSL_get_error(ssl_.get(), 0);
  if (what == SSL_ERROR_WANT_READ || what == SSL_ERROR_WANT_WRITE) {
    errno = EAGAIN;
    return false;
  }
  is_over_ = true;
  if (what == SSL_ERROR_SYSCALL) {
    why_over_ = errno == 0 ? ECONNRESET : errno;
  } else if (what != SSL_ERROR_ZERO_RETURN) {
    why_over_ = ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING ? ECONNRESET : EBADMSG;
  }
  errno = why_over_;
  return why_over_ == 0;
}

ssize_t TlsChannel::write(const iovec* places, int count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!send_sealed()) {
    return -1;
  }
  size_t bytes = 0;
  int i = 0;
  size_t offset = 0;
  while (i < count && bytes < kBatch) {
    const auto* const data = static_cast<const char*>(places[i].iov_base) + offset;
    const size_t left = places[i].iov_len - offset;
    if (left >= kRecord || (left > 0 && i + 1 == count)) {
      const size_t size = std::min(left, kRecord);
      if (!write_record(data, size)) {
        return -1;
      }
      bytes += size;
      offset += size;
      continue;
    }
    // Small places share a record.
    gathered_.clear();
    while (i < count && gathered_.size() < kRecord) {
      const auto* const begin = static_cast<const char*>(places[i].iov_base) + offset;
      const size_t size = std::min(places[i].iov_len - offset, kRecord - gathered_.size());
      gathered_.insert(gathered_.end(), begin, begin + size);
      offset += size;
      if (offset == places[i].iov_len) {
        ++i;
        offset = 0;
      }
    }
    if (!gathered_.empty() && !write_record(gathered_.data(), gathered_.size())) {
      return -1;
    }
    bytes += gathered_.size();
    if (i < count && offset == places[i].iov_len) {
      ++i;
      offset = 0;
    }
  }
  if (!send_sealed() && errno != EAGAIN) {
    return -1;
  }
  return static_cast<ssize_t>(bytes);
}

// Seals a record, into memory. Needs the lock.
bool TlsChannel::write_record(const char* data, size_t size) {
  ERR_clear_error();
  if (with_this_key_ >= bytes_per_key_) {
    with_this_key_ = 0;
    SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED);
  }
  size_t written = 0;
  if (SSL_write_ex(ssl_.get(), data, size, &written) != 1 || written != size) {
    errno = EPIPE;
    return false;
  }
  with_this_key_ += size;
  return true;
}

bool TlsChannel::flush() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!send_sealed()) {
    return false;
  }
  if (sealed_.capacity() > kMostKept) {
    sealed_ = {};
  }
  return true;
}

// Needs the lock.
bool TlsChannel::send_sealed() {
  while (sent_ < sealed_.size()) {
    const ssize_t now = ::send(fd(), sealed_.data() + sent_, sealed_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (now == -1 && errno == EINTR) {
      continue;
    }
    if (now == -1) {
      errno = errno == EWOULDBLOCK ? EAGAIN : errno;
      return false;
    }
    sent_ += static_cast<size_t>(now);
  }
  sent_ = 0;
  sealed_.clear();
  return true;
}

void TlsChannel::finish() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (SSL_is_init_finished(ssl_.get()) == 1) {
      ERR_clear_error();
      SSL_shutdown(ssl_.get());  // says that no data follow
      send_sealed();
    }
  }
  Channel::finish();
}

}  // namespace rpc_backends::zeromq
