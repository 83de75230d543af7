// Connections with TLS 1.3, in which both sides prove which session key is theirs.
//
// Each worker signs a certificate for its own session key. A certificate says nothing except the key: which worker has
// it is known from the worker's publication. So no certificate is checked against an authority, a name or a date.
#pragma once

#include <openssl/ssl.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "channel.h"

namespace rpc_backends::zeromq {

class TlsChannel;

class TlsContext {
 public:
  // Bytes that are sent with one key. AES-GCM is safe for 2**24.5 records of 16 KiB (RFC 8446, 5.5), which is 388 GiB.
  static constexpr uint64_t kBytesPerKey = uint64_t{64} << 30;

  // The session keys of this worker, in Z85. Throws TransportError.
  TlsContext(const std::string& public_key, const std::string& secret_key, uint64_t bytes_per_key = kBytesPerKey);

  // Makes the channel of the side that connects. `peer_key`: the key that the peer must have.
  std::unique_ptr<TlsChannel> connecting(std::unique_ptr<Fd> fd, const std::string& peer_key) const;

  // Makes the channel of the side that listens. Whether the key of the peer is known is checked after the handshake.
  std::unique_ptr<TlsChannel> listening(std::unique_ptr<Fd> fd) const;

 private:
  struct FreeContext {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };

  const uint64_t bytes_per_key_;
  std::unique_ptr<SSL_CTX, FreeContext> context_;
};

class TlsChannel final : public Channel {
 public:
  // `context`: must have been made by TlsContext. `peer_key`: empty to accept any key.
  TlsChannel(SSL_CTX* context, std::unique_ptr<Fd> fd, bool connects, std::string peer_key, uint64_t bytes_per_key);
  ~TlsChannel() override;

  enum class Handshake { kDone, kNeedsData, kNeedsRoom, kFailed };

  // Goes on with the handshake. Call it again when data has arrived, or when the socket has room.
  Handshake shake_hands();

  // Why the handshake failed.
  const std::string& failure() const { return failure_; }

  // The key that the peer has proved; known at the end of the handshake.
  const std::string& peer_key() const { return peer_key_; }

  // errno is EBADMSG if the data were changed on their way.
  ssize_t read(const iovec* places, int count) override;
  ssize_t write(const iovec* places, int count) override;
  bool flush() override;
  void finish() override;

 private:
  static int verify(X509_STORE_CTX* store, void* unused);
  static int keep_sealed(BIO* bio, const char* data, int size);
  static const BIO_METHOD* keeping();
  bool check_key(X509* certificate);
  bool read_record(char* place, size_t size, size_t& got);
  bool write_record(const char* data, size_t size);
  bool send_sealed();
  Handshake fail(const std::string& why);

  struct FreeSsl {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };

  const uint64_t bytes_per_key_;
  const bool connects_;
  std::string peer_key_;
  std::string failure_;
  bool is_wrong_key_ = false;

  std::mutex mutex_;  // an SSL may be used by one thread at a time
  std::unique_ptr<SSL, FreeSsl> ssl_;
  std::vector<char> sealed_;  // what `ssl_` has written
  size_t sent_ = 0;           // bytes at the front of `sealed_` that the socket has taken
  uint64_t with_this_key_ = 0;
  bool is_over_ = false;  // no more data can be read
  int why_over_ = 0;      // errno; 0 if the peer has said that no more follow
  std::vector<char> gathered_;
};

}  // namespace rpc_backends::zeromq
