// The records of TLS 1.3 (RFC 8446, sections 5 and 7.3), sealed and opened with OpenSSL's ciphers.
//
// OpenSSL's own functions for connections copy all data once more at each end, and let one thread at a time use a
// connection. Here data are sealed out of their memory and opened into it, and each direction has a key of its own.
#pragma once

#include <openssl/evp.h>
#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "rpc_backends_agents/openssl/crypto.h"
#include "secret_text.h"

namespace rpc_backends::zeromq {

namespace records {

inline constexpr size_t kMost = 16384;  // bytes of data in a record
inline constexpr size_t kHead = 5;
inline constexpr size_t kTag = 16;
inline constexpr size_t kAdded = kHead + 1 + kTag;  // bytes that a record adds to its data
// Bytes of the longest record, without its head, that a peer may send. Workers do not pad.
inline constexpr size_t kLongest = kMost + 1 + kTag;

enum class Type : uint8_t { kAlert = 21, kHandshake = 22, kData = 23 };

}  // namespace records

// A position in a list of places in memory.
class Cursor {
 public:
  Cursor(const iovec* places, int count) : place_(places), end_(places + count) { skip_full(); }

  // The longest piece at the position, of at most `most` bytes; empty at the end.
  iovec piece(size_t most) const;
  void advance(size_t size);
  // The number of bytes that are left, or `most` if there are more.
  size_t left(size_t most) const;

 private:
  void skip_full();

  const iovec* place_;
  const iovec* end_;
  size_t offset_ = 0;
};

// The key of one direction of a connection.
class RecordKey {
 public:
  // `secret`: the traffic secret, from the handshake. Throws TransportError.
  RecordKey(const Crypto& crypto, const EVP_CIPHER* cipher, std::string_view secret, bool seals);

  // Goes on to the next key (RFC 8446, section 7.2).
  void replace();

  // Writes a record with `size` bytes of data, at most kMost, to `to`: size + kAdded bytes. Returns false on failure.
  bool seal(records::Type type, Cursor& data, size_t size, char* to);

  // Opens a record: its head, then `size` bytes, of which size - 1 - kTag are data for `places`. Returns false if it
  // was changed on its way; then what is at the places is not to be used.
  bool open(const char* record, size_t size, Cursor& places, records::Type& type);

 private:
  struct Free {
    void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
  };

  void set_key();
  bool begin(const char* head);

  const Crypto& crypto_;
  const EVP_CIPHER* const cipher_;
  const bool seals_;
  SecretText secret_;
  std::unique_ptr<EVP_CIPHER_CTX, Free> context_;
  std::array<unsigned char, 12> base_{};  // the nonce of a record is this, combined with the record's number
  uint64_t number_ = 0;
};

}  // namespace rpc_backends::zeromq
