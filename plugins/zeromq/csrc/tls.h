// Connections with TLS 1.3, in which both sides prove which session key is theirs, or who they are.
//
// Without an authority, each worker signs a certificate for its own session key. Such a certificate says nothing except
// the key: which worker has it is known from the worker's publication. So it is not checked against an authority, a
// name or a date.
//
// With an authority, OpenSSL verifies the certificates; see certificates.h. A worker is then known by its identity,
// which stands in place of the session key.
//
// OpenSSL does the handshake. The records after it are sealed and opened here; see records.h.
#pragma once

#include <openssl/ssl.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "channel.h"
#include "records.h"
#include "rpc_backends_agents/openssl/certificates.h"
#include "rpc_backends_agents/openssl/crypto.h"

namespace rpc_backends::zeromq {

class TlsChannel;

class TlsContext {
 public:
  // Bytes of records that are sent with one key. AES-GCM is safe for 2**24.5 records of 16 KiB (RFC 8446, 5.5), which
  // is 388 GiB. Each record counts with what it adds to its data, so that many short ones take no more blocks.
  static constexpr uint64_t kBytesPerKey = uint64_t{64} << 30;

  // The session keys of this worker, as make_keys() makes them. Throws TransportError.
  TlsContext(const Crypto& crypto, const std::string& public_key, std::string_view secret_key,
             uint64_t bytes_per_key = kBytesPerKey);

  // The same with a certificate of an authority.
  TlsContext(const Crypto& crypto, const Certificates& certificates, uint64_t bytes_per_key = kBytesPerKey);

  // Uses other certificates from now on. Any thread may call it.
  void renew(const Certificates& certificates);

  Revoked& revoked() const { return *revoked_; }

  // Makes the channel of the side that connects. `peer_key`: the key that the peer must have.
  std::unique_ptr<TlsChannel> connecting(std::unique_ptr<Fd> fd, const std::string& peer_key) const;

  // Makes the channel of the side that listens. Whether the key of the peer is known is checked after the handshake.
  std::unique_ptr<TlsChannel> listening(std::unique_ptr<Fd> fd) const;

 private:
  struct FreeContext {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };

  using Context = std::unique_ptr<SSL_CTX, FreeContext>;

  static Context make(const Crypto& crypto);
  static Context make(const Crypto& crypto, const Certificates& certificates);
  std::unique_ptr<TlsChannel> channel(std::unique_ptr<Fd> fd, bool connects, const std::string& peer_key) const;

  const Crypto& crypto_;
  const uint64_t bytes_per_key_;
  const std::shared_ptr<Revoked> revoked_;  // null without an authority
  mutable std::mutex mutex_;
  Context context_;
};

class TlsChannel final : public Channel {
 public:
  // `context`: must be that of a TlsContext. `peer_key`: empty to accept any key.
  // `revoked`: null if certificates are not those of an authority.
  TlsChannel(const Crypto& crypto, SSL_CTX* context, std::unique_ptr<Fd> fd, bool connects, std::string peer_key,
             uint64_t bytes_per_key, std::shared_ptr<const Revoked> revoked);
  ~TlsChannel() override;

  enum class Handshake { kDone, kNeedsData, kNeedsRoom, kFailed };

  // Goes on with the handshake. Call it again when data has arrived, or when the socket has room.
  Handshake shake_hands();

  // Why the handshake failed.
  const std::string& failure() const { return failure_; }

  // The key that the peer has proved; known at the end of the handshake.
  const std::string& peer_key() const { return peer_key_; }

  // Whose certificate the peer has shown; empty without an authority. Known at the end of the handshake.
  const Subject& peer() const { return peer_; }

  using Channel::read;
  // For these the handshake must have ended. errno is EBADMSG if the data were changed on their way.
  ssize_t read(const iovec* places, int count, bool& is_drained) override;
  void expect(size_t more) override;
  ssize_t write(const iovec* places, int count) override;
  bool flush() override;
  void trim() override;
  void finish() override;

 private:
  friend class TlsContext;

  static const BIO_METHOD* socket_method();
  static int read_socket(BIO* bio, char* data, int size);
  static int write_socket(BIO* bio, const char* data, int size);
  static int verify(X509_STORE_CTX* store, void* unused);
  static void keep_secret(const SSL* ssl, const char* line);
  bool check_key(X509* certificate);
  bool check_certificate(X509_STORE_CTX* store);
  Handshake fail(const std::string& why);
  bool begin_records();

  ssize_t end(int why);
  bool receive();
  bool open_record(size_t size, Cursor& places, size_t& got);
  bool handle_control(records::Type type, const char* data, size_t size);
  void make_room(size_t data);
  bool seal(records::Type type, Cursor& data, size_t size);

  struct FreeSsl {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };

  const Crypto& crypto_;
  const uint64_t bytes_per_key_;
  const bool connects_;
  const std::shared_ptr<const Revoked> revoked_;
  std::string peer_key_;
  Subject peer_;

  // Only during the handshake.
  std::unique_ptr<SSL, FreeSsl> ssl_;
  SecretText our_secret_, their_secret_;
  std::string first_bytes_;  // that have arrived
  std::string failure_;
  bool is_wrong_key_ = false;
  std::string refusal_;  // why the peer's certificate is not accepted

  // Only of the thread that reads.
  std::optional<RecordKey> opener_;
  std::unique_ptr<char[]> arrived_;  // records from `begin_` to `end_`
  size_t begin_ = 0, end_ = 0;
  std::vector<char> opened_;  // data for which there was no place, from `taken_` on
  size_t taken_ = 0;
  int without_data_ = 0;                   // records in a row
  bool is_over_ = false;                   // no more data can be read
  int why_over_ = 0;                       // errno; 0 if the peer has said that no more follow
  std::atomic<bool> must_replace_{false};  // the peer wants another key from the thread that writes

  // Only of the thread that writes.
  std::optional<RecordKey> sealer_;
  std::unique_ptr<char[]> sealed_;
  size_t sent_ = 0, sealed_size_ = 0, room_ = 0;  // bytes in `sealed_`
  uint64_t with_this_key_ = 0;
};

}  // namespace rpc_backends::zeromq
