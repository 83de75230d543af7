// Whatever a stranger sends during the handshake of TLS, it fails in order, and gives no data. It ends well only with
// the key of the honest peer. Whatever is changed after it, what is read is a prefix of what the honest peer has sent.
//
// A stranger who has finished the handshake, and seals what it wants, is read up to the first record that TLS does not
// allow there.
//
// The workers have keys of their session, or certificates of an authority.
//
// The first byte of an input says which of these, which side gets it, and whether it comes alone or changes what an
// honest peer sends, in the handshake or after it: then each three bytes are a position and what the byte there is
// combined with. Or it is what a stranger seals: the type and the size of a record, and its content.
#include <fcntl.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "authority.h"
#include "keys.h"
#include "seeds.h"
#include "socket_pair.h"
#include "tls.h"

namespace rpc_backends::zeromq {

namespace {

using Handshake = TlsChannel::Handshake;

void put(int fd, const std::string& data) {
  [[maybe_unused]] const ssize_t sent = ::send(fd, data.data(), data.size(), MSG_NOSIGNAL);
}

bool is_over(Handshake state) {
  return state == Handshake::kDone || state == Handshake::kFailed;
}

struct Peer {
  Peer() : Peer(make_keys(Crypto::get(false))) {}
  explicit Peer(const std::pair<std::string, SecretText>& keys)
      : key(keys.first), context(Crypto::get(false), keys.first, keys.second) {}
  explicit Peer(const Certificates& certificates)
      : key(certificates.subject().key), context(Crypto::get(false), certificates) {}
  std::string key;  // by which others know this worker
  TlsContext context;
};

struct Pair {
  Peer calling_peer, called_peer;

  static const Pair& of(bool with_certificates) {
    static const Pair with_keys;
    static const Pair with_certificates_of_an_authority = [] {
      const Authority authority;
      return Pair{Peer(*authority.certify({"URI:spiffe://x/a", -3600, 1L << 30})),
                  Peer(*authority.certify({"DNS:b", -3600, 1L << 30}))};
    }();
    return with_certificates ? with_certificates_of_an_authority : with_keys;
  }
};

void expect_nothing_to_read(TlsChannel& channel) {
  char buffer[100];
  check(channel.read(buffer, sizeof buffer) <= 0);
}

void send_alone(TlsChannel& channel, int other_end, const std::string& data) {
  channel.shake_hands();
  put(other_end, data);
  for (int i = 0; i < 4; ++i) {
    const Handshake state = channel.shake_hands();
    check(state != Handshake::kDone);
    if (state == Handshake::kFailed) {
      check(!channel.failure().empty());
      break;
    }
  }
}

bool change(std::string& data, const std::string& changes, size_t& offset) {
  bool has_changed = false;
  for (size_t i = 0; i + 3 <= changes.size(); i += 3) {
    const size_t position = static_cast<uint8_t>(changes[i]) | static_cast<size_t>(static_cast<uint8_t>(changes[i + 1]))
                                                                   << 8;
    if (position >= offset && position < offset + data.size() && changes[i + 2] != 0) {
      data[position - offset] = static_cast<char>(data[position - offset] ^ changes[i + 2]);
      has_changed = true;
    }
  }
  offset += data.size();
  return has_changed;
}

void change_honest(const Pair& pair, bool of_caller, const std::string& changes) {
  const auto& [calling_peer, called_peer] = pair;
  auto [end_one, at_one] = socket_pair();
  auto [end_two, at_two] = socket_pair();
  const auto caller = calling_peer.context.connecting(std::move(end_one), called_peer.key);
  const auto called = called_peer.context.listening(std::move(end_two));
  Handshake here = Handshake::kNeedsData, there = Handshake::kNeedsData;
  size_t offset = 0;
  bool has_changed = false;
  for (int i = 0; i < 6; ++i) {
    here = is_over(here) ? here : caller->shake_hands();
    std::string data = received(at_one->get());
    has_changed = (of_caller && change(data, changes, offset)) || has_changed;
    put(at_two->get(), data);
    there = is_over(there) ? there : called->shake_hands();
    data = received(at_two->get());
    has_changed = (!of_caller && change(data, changes, offset)) || has_changed;
    put(at_one->get(), data);
  }
  check(has_changed || (here == Handshake::kDone && there == Handshake::kDone));
  // TLS ignores a few bytes, such as the version in the head of the first records.
  if (here == Handshake::kDone) {
    check(caller->peer_key() == called_peer.key);
    expect_nothing_to_read(*caller);
  }
  if (there == Handshake::kDone) {
    check(called->peer_key() == calling_peer.key);
    expect_nothing_to_read(*called);
  }
}

void change_data(const Pair& pair, const std::string& changes) {
  const auto& [calling_peer, called_peer] = pair;
  auto [end_one, at_one] = socket_pair();
  auto [end_two, at_two] = socket_pair();
  const auto caller = calling_peer.context.connecting(std::move(end_one), called_peer.key);
  const auto called = called_peer.context.listening(std::move(end_two));
  Handshake here = Handshake::kNeedsData, there = Handshake::kNeedsData;
  for (int i = 0; i < 6; ++i) {
    here = is_over(here) ? here : caller->shake_hands();
    put(at_two->get(), received(at_one->get()));
    there = is_over(there) ? there : called->shake_hands();
    put(at_one->get(), received(at_two->get()));
  }
  check(here == Handshake::kDone && there == Handshake::kDone);
  std::string sent;
  for (const size_t size : {size_t{10}, size_t{300}, size_t{1}, size_t{64}, size_t{2000}}) {
    const std::string data(size, static_cast<char>('a' + sent.size() % 26));
    const iovec place{const_cast<char*>(data.data()), data.size()};
    check(caller->write(&place, 1) == static_cast<ssize_t>(size));
    sent += data;
  }
  caller->finish();
  std::string wire = received(at_one->get());
  size_t offset = 0;
  const bool has_changed = change(wire, changes, offset);
  put(at_two->get(), wire);
  ::shutdown(at_two->get(), SHUT_WR);
  std::string read;
  char buffer[777];
  ssize_t got = 0;
  for (int i = 0; i < 100 && ((got = called->read(buffer, sizeof buffer)) > 0 || (got == -1 && errno == EAGAIN)); ++i) {
    read.append(buffer, got > 0 ? static_cast<size_t>(got) : 0);
  }
  check(sent.compare(0, read.size(), read) == 0);
  check(has_changed || (got == 0 && read == sent));
  check(got == -1 || read == sent);  // an orderly end comes last
}

// A client of OpenSSL that gives away its secret.
struct Stranger {
  explicit Stranger(std::unique_ptr<Fd> socket) : end(std::move(socket)) {
    static SSL_CTX* const context = [] {
      SSL_CTX* const made = SSL_CTX_new(TLS_client_method());
      SSL_CTX_set_ciphersuites(made, "TLS_AES_128_GCM_SHA256");
      SSL_CTX_set_keylog_callback(made, [](const SSL* from, const char* line) {
        const std::string text(line);
        if (text.starts_with("CLIENT_TRAFFIC_SECRET_0")) {
          static_cast<Stranger*>(SSL_get_app_data(from))->secret = text.substr(text.rfind(' ') + 1);
        }
      });
      static EVP_PKEY* const key = EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519");
      X509* const certificate = X509_new();
      X509_set_pubkey(certificate, key);
      X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
      X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
      X509_sign(certificate, key, nullptr);
      check(SSL_CTX_use_certificate(made, certificate) == 1 && SSL_CTX_use_PrivateKey(made, key) == 1);
      return made;
    }();
    ssl = SSL_new(context);
    SSL_set_fd(ssl, end->get());
    SSL_set_app_data(ssl, this);
  }
  ~Stranger() { SSL_free(ssl); }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  RecordKey sealer() const {
    long size = 0;
    unsigned char* const raw = OPENSSL_hexstr2buf(secret.c_str(), &size);
    check(raw != nullptr);
    const std::string text(reinterpret_cast<char*>(raw), static_cast<size_t>(size));
    OPENSSL_free(raw);
    const Crypto& crypto = Crypto::get(false);
    return {crypto, crypto.aes_gcm(), text, true};
  }

  std::unique_ptr<Fd> end;
  SSL* ssl = nullptr;
  std::string secret;
};

void seal_as_stranger(const std::string& contents) {
  static const Peer peer;
  auto [end, far_end] = socket_pair();
  const auto channel = peer.context.listening(std::move(far_end));
  const Stranger stranger(std::move(end));
  Handshake state = Handshake::kNeedsData;
  for (int i = 0; i < 6 && state != Handshake::kDone; ++i) {
    SSL_connect(stranger.ssl);
    state = channel->shake_hands();
  }
  check(state == Handshake::kDone);
  RecordKey sealer = stranger.sealer();
  // What has to arrive: data, and changes of the key, until something else comes.
  const std::string update("\x18\0\0\1\0", 5);
  std::string sent;
  bool is_allowed = true;
  for (size_t at = 0, count = 0; at + 2 <= contents.size() && count < 50; ++count) {
    const auto type = static_cast<records::Type>(contents[at]);
    std::string data = contents.substr(at + 2, static_cast<uint8_t>(contents[at + 1]));
    at += 2 + data.size();
    if (type == records::Type::kHandshake && data.size() % 2 == 0) {
      data = update;
    }
    const iovec place{data.data(), data.size()};
    Cursor cursor(&place, 1);
    std::string record(data.size() + records::kAdded, '\0');
    check(sealer.seal(type, cursor, data.size(), record.data()));
    put(stranger.end->get(), record);
    const bool is_update =
        type == records::Type::kHandshake && (data == update || data == std::string("\x18\0\0\1\1", 5));
    if (is_update) {
      sealer.replace();
    }
    is_allowed = is_allowed && (type == records::Type::kData || is_update);
    if (is_allowed && type == records::Type::kData) {
      sent += data;
    }
  }
  std::string read;
  char buffer[333];
  ssize_t got = 0;
  for (int i = 0; i < 100 && (got = channel->read(buffer, sizeof buffer)) > 0; ++i) {
    read.append(buffer, static_cast<size_t>(got));
  }
  check(got <= 0);
  check(sent.compare(0, read.size(), read) == 0);
  check(got == -1 || !is_allowed || read == sent);
}

std::vector<std::string> all_seeds() {
  const Peer peer;
  auto [end, far_end] = socket_pair();
  const auto caller = peer.context.connecting(std::move(end), peer.key);
  caller->shake_hands();
  const std::string hello = received(far_end->get());
  return {std::string("\0", 1) + hello,
          std::string("\1", 1) + hello,
          std::string("\2\0\0\0", 4),
          std::string("\2\5\0\1\x30\0\x10", 7),
          std::string("\3\7\0\1\x50\1\x20", 7),
          std::string("\4\0\0\0", 4),
          std::string("\4\3\0\1\x50\1\x20", 7),
          std::string("\x10", 1) + hello,
          std::string("\x12\0\2\1\x50\4\x20", 7),
          std::string("\x13\7\0\1\x50\4\x20", 7),
          std::string("\x14\0\0\0", 4),
          std::string("\x08\x17\4data\x17\0\x16\5\x18\0\0\1\0\x15\2\1\0", 21)};
}

}  // namespace

}  // namespace rpc_backends::zeromq

std::vector<std::string> seeds() {
  return rpc_backends::zeromq::all_seeds();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rpc_backends::zeromq;
  if (size == 0) {
    return 0;
  }
  const std::string rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if ((data[0] & 8) != 0) {
    seal_as_stranger(rest);
    return 0;
  }
  const Pair& pair = Pair::of((data[0] & 16) != 0);
  if ((data[0] & 4) != 0) {
    change_data(pair, rest);
    return 0;
  }
  if ((data[0] & 2) != 0) {
    change_honest(pair, (data[0] & 1) != 0, rest);
    return 0;
  }
  const Peer& peer = pair.calling_peer;
  auto [end, far_end] = socket_pair();
  const auto channel =
      (data[0] & 1) != 0 ? peer.context.connecting(std::move(end), peer.key) : peer.context.listening(std::move(end));
  send_alone(*channel, far_end->get(), rest);
  return 0;
}
