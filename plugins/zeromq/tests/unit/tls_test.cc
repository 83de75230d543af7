// TLS between two workers, also with an attacker between them who changes, cuts, repeats or downgrades what is sent.
#include "tls.h"

#include <gtest/gtest.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "keys.h"
#include "rpc_backends_agents/transport.h"
#include "socket_pair.h"

namespace rpc_backends::zeromq {
namespace {

using Handshake = TlsChannel::Handshake;

struct Keys {
  explicit Keys(const Crypto& crypto) { std::tie(public_key, secret_key) = make_keys(crypto); }
  std::string public_key;
  SecretText secret_key;
};

void put(int fd, const std::string& data) {
  for (size_t sent = 0; sent < data.size();) {
    const ssize_t now = ::send(fd, data.data() + sent, data.size() - sent, MSG_NOSIGNAL);
    if (now <= 0) {
      return;
    }
    sent += static_cast<size_t>(now);
  }
}

// Two ends, and a relay between them that passes data on when a test wants it.
class TlsTest : public testing::Test {
 protected:
  void connect(const std::string& expected_key, uint64_t bytes_per_key = TlsContext::kBytesPerKey) {
    caller_context =
        std::make_unique<TlsContext>(crypto(), caller_keys.public_key, caller_keys.secret_key, bytes_per_key);
    called_context =
        std::make_unique<TlsContext>(crypto(), called_keys.public_key, called_keys.secret_key, bytes_per_key);
    auto [caller_fd, near_caller] = socket_pair();
    auto [called_fd, near_called] = socket_pair();
    caller = caller_context->connecting(std::move(caller_fd), expected_key);
    called = called_context->listening(std::move(called_fd));
    at_caller = std::move(near_caller);
    at_called = std::move(near_called);
  }

  using Change = std::function<void(std::string&)>;

  // Passes on what has been sent; this may be changed on its way.
  void pass(const Change& on_the_way_there = {}, const Change& on_the_way_back = {}) {
    for (const auto& [from, to, change] : {std::tuple(at_caller.get(), at_called.get(), &on_the_way_there),
                                           std::tuple(at_called.get(), at_caller.get(), &on_the_way_back)}) {
      std::string data = received(from->get());
      if (*change && !data.empty()) {
        (*change)(data);
      }
      put(to->get(), data);
    }
  }

  // Returns how the handshake ends at both sides.
  std::pair<Handshake, Handshake> shake_hands(const Change& on_the_way_there = {}, const Change& on_the_way_back = {}) {
    Handshake here = Handshake::kNeedsData, there = Handshake::kNeedsData;
    for (int i = 0; i < 10; ++i) {
      if (here != Handshake::kDone && here != Handshake::kFailed) {
        here = caller->shake_hands();
      }
      pass(on_the_way_there, on_the_way_back);
      if (there != Handshake::kDone && there != Handshake::kFailed) {
        there = called->shake_hands();
      }
      pass(on_the_way_there, on_the_way_back);
    }
    return {here, there};
  }

  void open(uint64_t bytes_per_key = TlsContext::kBytesPerKey) {
    connect(called_keys.public_key, bytes_per_key);
    const auto [here, there] = shake_hands();
    ASSERT_EQ(here, Handshake::kDone);
    ASSERT_EQ(there, Handshake::kDone);
  }

  static ssize_t write(Channel& channel, const std::string& text) {
    const iovec place{const_cast<char*>(text.data()), text.size()};
    return channel.write(&place, 1);
  }

  static ssize_t read(Channel& channel, std::string& text, size_t most = 100'000) {
    text.assign(most, '\0');
    const ssize_t got = channel.read(text.data(), text.size());
    text.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return got;
  }

  static const Crypto& crypto() { return Crypto::get(false); }

  Keys caller_keys{crypto()}, called_keys{crypto()};
  std::unique_ptr<TlsContext> caller_context, called_context;
  std::unique_ptr<TlsChannel> caller, called;
  std::unique_ptr<Fd> at_caller, at_called;
  std::string text;
};

TEST_F(TlsTest, BothSidesLearnTheKeyOfTheOther) {
  open();
  EXPECT_EQ(caller->peer_key(), called_keys.public_key);
  EXPECT_EQ(called->peer_key(), caller_keys.public_key);
}

TEST_F(TlsTest, CarriesDataInBothDirections) {
  open();
  EXPECT_EQ(write(*caller, "request"), 7);
  pass();
  EXPECT_EQ(read(*called, text), 7);
  EXPECT_EQ(text, "request");
  EXPECT_EQ(write(*called, "reply"), 5);
  pass();
  EXPECT_EQ(read(*caller, text), 5);
  EXPECT_EQ(text, "reply");
  EXPECT_EQ(read(*caller, text), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(TlsTest, NothingOfTheDataIsVisible) {
  open();
  const std::string data = "a text that only the two workers may read";
  write(*caller, data);
  const std::string visible = received(at_caller->get());
  EXPECT_GT(visible.size(), data.size());
  EXPECT_EQ(visible.find(data.substr(0, 8)), std::string::npos);
}

TEST_F(TlsTest, PlacesOfAllSizesArriveInOrder) {
  open();
  std::vector<std::string> pieces;
  std::string whole;
  for (const size_t size : {0, 1, 16, 5000, 16383, 16384, 16385, 0, 40000, 3, 100'000}) {
    pieces.emplace_back(size, static_cast<char>('a' + pieces.size()));
    whole += pieces.back();
  }
  std::vector<iovec> places;
  for (std::string& piece : pieces) {
    places.push_back({piece.data(), piece.size()});
  }
  std::string all;
  size_t done = 0;
  for (int i = 0; i < 1000 && all.size() < whole.size(); ++i) {
    if (done < whole.size()) {
      // The places that are left, as Stream lists them.
      std::vector<iovec> left;
      size_t skip = done;
      for (const iovec& place : places) {
        const size_t skipped = std::min(skip, place.iov_len);
        skip -= skipped;
        if (skipped < place.iov_len) {
          left.push_back({static_cast<char*>(place.iov_base) + skipped, place.iov_len - skipped});
        }
      }
      const ssize_t now = caller->write(left.data(), static_cast<int>(left.size()));
      done += now > 0 ? static_cast<size_t>(now) : 0;
    } else {
      caller->flush();
    }
    pass();
    if (read(*called, text, 7777) > 0) {
      all += text;
    }
  }
  EXPECT_TRUE(all == whole);
}

TEST_F(TlsTest, KeysAreReplacedAfterSoManyBytes) {
  open(1000);
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(write(*caller, std::string(700, 'x')), 700);
    pass();
    ASSERT_EQ(read(*called, text), 700);
    ASSERT_EQ(write(*called, std::string(700, 'y')), 700);
    pass();
    ASSERT_EQ(read(*caller, text), 700);
  }
}

TEST_F(TlsTest, EachRecordOfAMessageMayHaveAKeyOfItsOwn) {
  open(1);
  const std::string data(100'000, 'x');
  std::string all;
  for (size_t sent = 0; all.size() < data.size();) {
    const iovec place{const_cast<char*>(data.data()) + sent, data.size() - sent};
    sent += static_cast<size_t>(std::max<ssize_t>(sent < data.size() ? caller->write(&place, 1) : 0, 0));
    caller->flush();
    pass();
    ASSERT_GE(read(*called, text), 0);
    all += text;
  }
  EXPECT_TRUE(all == data);
}

TEST_F(TlsTest, ShortRecordsCountForTheirKeyToo) {
  open(1000);
  std::string wire;
  for (int i = 0; i < 100; ++i) {
    write(*caller, "x");
    wire += received(at_caller->get());
  }
  EXPECT_GE(wire.size(), 100 * (1 + records::kAdded) + 2 * (5 + records::kAdded));  // the changes of the key
  put(at_called->get(), wire);
  EXPECT_EQ(read(*called, text), 100);
}

TEST_F(TlsTest, TheEndOfTheDataIsSigned) {
  open();
  write(*caller, "last");
  caller->finish();
  pass();
  EXPECT_EQ(read(*called, text), 4);
  EXPECT_EQ(read(*called, text), 0);
}

// --- intruders --------------------------------------------------------------------------------------

TEST_F(TlsTest, AListenerWithAnotherKeyIsRefused) {
  connect(make_keys(crypto()).first);
  const auto [here, there] = shake_hands();
  EXPECT_EQ(here, Handshake::kFailed);
  EXPECT_EQ(caller->failure(), "a key is not the one that the other side expects");
  EXPECT_EQ(there, Handshake::kFailed);
  EXPECT_EQ(called->failure(), "a key is not the one that the other side expects");
}

TEST_F(TlsTest, AKeyWithoutItsSecretKeyIsAnError) {
  EXPECT_THROW(TlsContext(crypto(), called_keys.public_key, caller_keys.secret_key), TransportError);
}

// In what each side sends, a bit is changed of each field: of the first bytes, and of every 13th one. The fuzzer
// changes the others, too.
TEST_F(TlsTest, AChangedBitOfTheHandshakeEndsIt) {
  for (const bool is_callers : {true, false}) {
    size_t size = 1000, ignored = 0;
    for (size_t position = 0; position < size; position += position < 12 ? 1 : 13) {
      connect(called_keys.public_key);
      size_t offset = 0;
      const auto change = [&](std::string& data) {
        if (position >= offset && position < offset + data.size()) {
          data[position - offset] ^= 1;
        }
        offset += data.size();
      };
      const auto [here, there] = is_callers ? shake_hands(change) : shake_hands({}, change);
      const bool is_done = here == Handshake::kDone && there == Handshake::kDone;
      if (is_done) {
        EXPECT_EQ(caller->peer_key(), called_keys.public_key);
        EXPECT_EQ(called->peer_key(), caller_keys.public_key);
        size = offset;
        ++ignored;
      }
    }
    // TLS ignores the version in the heads of records, and a record for old machines on the path.
    EXPECT_GT(size, 300U);
    EXPECT_LE(ignored, 12U) << is_callers;
  }
}

TEST_F(TlsTest, AChangedBitOfTheDataEndsTheConnection) {
  for (size_t position = 0; position < 100 + records::kAdded; position += position < 6 ? 1 : 5) {
    open();
    write(*caller, std::string(100, 'x'));
    std::string data = received(at_caller->get());
    data[position] ^= 0x10;
    put(at_called->get(), data);
    ::shutdown(at_called->get(), SHUT_WR);
    EXPECT_EQ(read(*called, text), -1) << position;
    if (errno == EAGAIN) {  // it waits for a longer record than what arrived
      EXPECT_EQ(read(*called, text), -1) << position;
    }
    EXPECT_TRUE(errno == EBADMSG || errno == ECONNRESET) << position;
    EXPECT_EQ(read(*called, text), -1);
  }
}

TEST_F(TlsTest, ACutAnywhereIsNoOrderlyEnd) {
  const size_t end_of_first = 20 + records::kAdded, end_of_second = end_of_first + 30 + records::kAdded;
  for (size_t cut = 0; cut < end_of_second + 2 + records::kAdded; cut += 7) {
    open();
    write(*caller, std::string(20, 'a'));
    write(*caller, std::string(30, 'b'));
    caller->finish();
    put(at_called->get(), received(at_caller->get()).substr(0, cut));
    ::shutdown(at_called->get(), SHUT_WR);
    std::string all;
    ssize_t got = 0;
    while ((got = read(*called, text)) > 0 || (got == -1 && errno == EAGAIN)) {
      all += text;
    }
    EXPECT_EQ(got, -1) << cut;
    EXPECT_EQ(errno, ECONNRESET) << cut;
    EXPECT_EQ(all.size(), cut < end_of_first ? 0U : cut < end_of_second ? 20U : 50U) << cut;
  }
}

TEST_F(TlsTest, ARepeatedRecordEndsTheConnection) {
  open();
  write(*caller, "pay once");
  const std::string data = received(at_caller->get());
  put(at_called->get(), data + data);
  EXPECT_EQ(read(*called, text), 8);
  EXPECT_EQ(read(*called, text), -1);
  EXPECT_EQ(errno, EBADMSG);
}

TEST_F(TlsTest, ADroppedRecordEndsTheConnection) {
  open();
  write(*caller, "first");
  received(at_caller->get());
  write(*caller, "second");
  pass();
  EXPECT_EQ(read(*called, text), -1);
  EXPECT_EQ(errno, EBADMSG);
}

TEST_F(TlsTest, ACutConnectionIsNoOrderlyEnd) {
  open();
  write(*caller, "half a mes");
  put(at_called->get(), received(at_caller->get()));
  ::shutdown(at_called->get(), SHUT_WR);
  EXPECT_EQ(read(*called, text), 10);
  EXPECT_EQ(read(*called, text), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

TEST_F(TlsTest, ARecordedConnectionIsNotAcceptedAgain) {
  connect(called_keys.public_key);
  std::string recorded;
  const auto [here, there] = shake_hands([&](std::string& data) { recorded += data; });
  ASSERT_EQ(there, Handshake::kDone);
  write(*caller, "recorded");
  recorded += received(at_caller->get());
  auto [end, intruder] = socket_pair();
  const auto again = called_context->listening(std::move(end));
  put(intruder->get(), recorded);
  Handshake outcome = Handshake::kNeedsData;
  for (int i = 0; i < 10 && outcome == Handshake::kNeedsData; ++i) {
    outcome = again->shake_hands();
  }
  EXPECT_EQ(outcome, Handshake::kFailed);
}

TEST_F(TlsTest, DataOfOneDirectionIsNotAcceptedInTheOther) {
  open();
  write(*caller, "reflected");
  put(at_caller->get(), received(at_caller->get()));
  EXPECT_EQ(read(*caller, text), -1);
  EXPECT_EQ(errno, EBADMSG);
}

// A client that speaks another version, or wants other ciphers or keys than ours.
class DowngradeTest : public TlsTest {
 protected:
  struct FreeContext {
    void operator()(SSL_CTX* of) const { SSL_CTX_free(of); }
  };
  struct FreeSsl {
    void operator()(SSL* of) const { SSL_free(of); }
  };

  void SetUp() override {
    connect(called_keys.public_key);
    context.reset(SSL_CTX_new(TLS_method()));
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
  }

  // Gives the client a certificate for a key.
  void give_key(EVP_PKEY* key) {
    X509* const certificate = X509_new();
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    const bool is_ed25519 = EVP_PKEY_get_id(key) == EVP_PKEY_ED25519;
    EXPECT_GT(X509_sign(certificate, key, is_ed25519 ? nullptr : EVP_sha256()), 0);
    EXPECT_EQ(SSL_CTX_use_certificate(context.get(), certificate), 1);
    EXPECT_EQ(SSL_CTX_use_PrivateKey(context.get(), key), 1);
    X509_free(certificate);
  }

  void give_our_kind_of_key() {
    const auto [public_key, secret_key] = make_keys(crypto());
    give_key(parse_secret_key(crypto(), secret_key, public_key).get());
  }

  // How the handshake with this client ends at the side that listens.
  Handshake outcome() {
    std::tie(end, near) = socket_pair();
    client.reset(SSL_new(context.get()));
    SSL_set_fd(client.get(), end->get());
    SSL_set_app_data(client.get(), this);
    Handshake there = Handshake::kNeedsData;
    for (int i = 0; i < 10; ++i) {
      SSL_connect(client.get());
      put(at_called->get(), received(near->get()));
      there = there == Handshake::kNeedsData ? called->shake_hands() : there;
      put(near->get(), received(at_called->get()));
    }
    return there;
  }

  void open_with_openssl() { ASSERT_EQ(outcome(), Handshake::kDone); }

  // Passes on what the client and the side that listens have sent.
  void pass_on() {
    put(at_called->get(), received(near->get()));
    put(near->get(), received(at_called->get()));
  }

  std::unique_ptr<SSL_CTX, FreeContext> context;
  std::unique_ptr<Fd> end, near;
  std::unique_ptr<SSL, FreeSsl> client;
};

TEST_F(DowngradeTest, AClientWithAKeyOfOurKindIsAccepted) {
  give_our_kind_of_key();
  EXPECT_EQ(outcome(), Handshake::kDone);
}

TEST_F(DowngradeTest, AnOlderVersionOfTlsIsRefused) {
  give_our_kind_of_key();
  SSL_CTX_set_max_proto_version(context.get(), TLS1_2_VERSION);
  EXPECT_EQ(outcome(), Handshake::kFailed);
}

TEST_F(DowngradeTest, AnotherCipherIsRefused) {
  give_our_kind_of_key();
  ASSERT_EQ(SSL_CTX_set_ciphersuites(context.get(), "TLS_AES_128_CCM_SHA256"), 1);
  EXPECT_EQ(outcome(), Handshake::kFailed);
}

TEST_F(DowngradeTest, AnotherKindOfExchangeIsRefused) {
  give_our_kind_of_key();
  ASSERT_EQ(SSL_CTX_set1_groups_list(context.get(), "ffdhe2048:P-256"), 1);
  EXPECT_EQ(outcome(), Handshake::kFailed);
}

TEST_F(DowngradeTest, AClientWithoutAKeyIsRefused) {
  EXPECT_EQ(outcome(), Handshake::kFailed);
}

TEST_F(DowngradeTest, AKeyOfAnotherKindIsRefused) {
  const Key key(EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256"));
  give_key(key.get());
  EXPECT_EQ(outcome(), Handshake::kFailed);
}

TEST_F(DowngradeTest, AClientWithoutInstructionsForAesIsServed) {
  give_our_kind_of_key();
  ASSERT_EQ(SSL_CTX_set_ciphersuites(context.get(), "TLS_CHACHA20_POLY1305_SHA256"), 1);
  open_with_openssl();
  ASSERT_EQ(SSL_write(client.get(), "request", 7), 7);
  pass_on();
  EXPECT_EQ(read(*called, text), 7);
  EXPECT_EQ(text, "request");
  EXPECT_EQ(write(*called, "reply"), 5);
  pass_on();
  char buffer[10];
  EXPECT_EQ(SSL_read(client.get(), buffer, sizeof buffer), 5);
}

// A stranger who has finished the handshake with a key of its own, and then seals what it wants.
class SealedByAStrangerTest : public DowngradeTest {
 protected:
  void SetUp() override {
    DowngradeTest::SetUp();
    give_our_kind_of_key();
    ASSERT_EQ(SSL_CTX_set_ciphersuites(context.get(), "TLS_AES_128_GCM_SHA256"), 1);
    SSL_CTX_set_keylog_callback(context.get(), [](const SSL* ssl, const char* line) {
      auto* const test = static_cast<SealedByAStrangerTest*>(SSL_get_app_data(ssl));
      const std::string text(line);
      const std::string label = text.substr(0, text.find(' '));
      long size = 0;
      unsigned char* const raw = OPENSSL_hexstr2buf(text.substr(text.rfind(' ') + 1).c_str(), &size);
      test->secrets[label] = std::string(reinterpret_cast<char*>(raw), static_cast<size_t>(size));
      OPENSSL_free(raw);
    });
    open_with_openssl();
    sealer.emplace(crypto(), crypto().aes_gcm(), secrets["CLIENT_TRAFFIC_SECRET_0"], true);
  }

  void send(records::Type type, const std::string& data) {
    const iovec place{const_cast<char*>(data.data()), data.size()};
    Cursor cursor(&place, 1);
    std::string record(data.size() + records::kAdded, '\0');
    ASSERT_TRUE(sealer->seal(type, cursor, data.size(), record.data()));
    put(end->get(), record);
    pass_on();
  }

  void expect_the_end() {
    EXPECT_EQ(read(*called, text), -1);
    EXPECT_EQ(errno, EBADMSG);
  }

  std::map<std::string, std::string> secrets;
  std::optional<RecordKey> sealer;
};

const std::string kUpdate("\x18\0\0\x01\0", 5), kUpdateBoth("\x18\0\0\x01\x01", 5);

TEST_F(SealedByAStrangerTest, DataArriveThatAreSealedSo) {
  send(records::Type::kData, "data");
  EXPECT_EQ(read(*called, text), 4);
}

TEST_F(SealedByAStrangerTest, EmptyRecordsWithoutEndEndTheConnection) {
  for (int i = 0; i < 100; ++i) {
    send(records::Type::kData, "");
  }
  expect_the_end();
}

TEST_F(SealedByAStrangerTest, KeyUpdatesWithoutEndEndTheConnection) {
  for (int i = 0; i < 100; ++i) {
    send(records::Type::kHandshake, kUpdate);
    sealer->replace();
  }
  expect_the_end();
}

TEST_F(SealedByAStrangerTest, AFewEmptyRecordsAndKeyUpdatesAreNoFlood) {
  for (int i = 0; i < 100; ++i) {
    send(records::Type::kData, "");
    send(records::Type::kHandshake, kUpdate);
    sealer->replace();
    send(records::Type::kData, "data");
    ASSERT_EQ(read(*called, text), 4);
  }
}

TEST_F(SealedByAStrangerTest, AKeyUpdateMayComeBetweenTheRecordsOfAMessage) {
  send(records::Type::kData, std::string(10'000, 'a'));
  send(records::Type::kHandshake, kUpdate);
  sealer->replace();
  send(records::Type::kData, std::string(10'000, 'b'));
  EXPECT_EQ(read(*called, text), 20'000);
  EXPECT_TRUE(text == std::string(10'000, 'a') + std::string(10'000, 'b'));
}

TEST_F(SealedByAStrangerTest, AKeyUpdateCanAskForAnotherOne) {
  RecordKey opener(crypto(), crypto().aes_gcm(), secrets["SERVER_TRAFFIC_SECRET_0"], false);
  std::string wire;
  const auto next = [&](size_t size) {
    std::string data(size, '\0');
    const iovec place{data.data(), data.size()};
    Cursor cursor(&place, 1);
    records::Type type{};
    EXPECT_TRUE(opener.open(wire.data(), size + 1 + records::kTag, cursor, type));
    wire.erase(0, size + records::kAdded);
    return std::pair(type, data);
  };
  send(records::Type::kHandshake, kUpdateBoth);
  EXPECT_EQ(read(*called, text), -1);
  EXPECT_EQ(errno, EAGAIN);
  write(*called, "after");
  wire = received(at_called->get());
  EXPECT_EQ(next(kUpdate.size()), std::pair(records::Type::kHandshake, kUpdate));
  opener.replace();
  EXPECT_EQ(next(5), std::pair(records::Type::kData, std::string("after")));
  EXPECT_EQ(wire, "");
}

TEST_F(SealedByAStrangerTest, ARecordWithMoreThanTheLargestDataIsRefused) {
  send(records::Type::kData, std::string(records::kMost + 1, 'x'));
  expect_the_end();
}

TEST_F(SealedByAStrangerTest, NothingElseIsAcceptedAfterTheHandshake) {
  const std::string ticket("\x04\0\0\x02\0\0", 6), half = kUpdate.substr(0, 3), invalid_update("\x18\0\0\x01\x02", 5);
  const std::vector<std::pair<records::Type, std::string>> contents = {
      {records::Type::kHandshake, ticket},
      {records::Type::kHandshake, half},
      {records::Type::kHandshake, kUpdate + kUpdate},
      {records::Type::kHandshake, invalid_update},
      {records::Type::kHandshake, std::string(1000, '\x18')},
      {records::Type::kHandshake, ""},
      {records::Type::kAlert, std::string("\x02\x28", 2)},
      {records::Type::kAlert, std::string("\x01\0\0", 3)},
      {static_cast<records::Type>(20), std::string("\x01", 1)},
      {static_cast<records::Type>(0), std::string(30, '\0')},  // only padding
      {static_cast<records::Type>(0), std::string("x\x17\0", 3)},
      {static_cast<records::Type>(24), "heartbeat"},
  };
  for (const auto& [type, data] : contents) {
    SetUp();
    send(type, data);
    expect_the_end();
  }
}

TEST_F(SealedByAStrangerTest, AMessageInPlainAfterTheHandshakeEndsTheConnection) {
  for (const std::string& record :
       {std::string("\x15\x03\x03\0\x02\x01\0", 7), std::string("\x14\x03\x03\0\x01\x01", 6),
        std::string("\x17\x03\x03\0\x04"
                    "data",
                    9),
        std::string("\x17\x03\x03\0\0", 5)}) {
    SetUp();
    put(end->get(), record);
    pass_on();
    expect_the_end();
  }
}

// With the algorithms of OpenSSL's FIPS provider.
class FipsTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      fips = &Crypto::get(true);
    } catch (const TransportError&) {
      GTEST_SKIP() << "OpenSSL's FIPS provider is not installed here";
    }
  }

  const Crypto* fips = nullptr;
};

TEST_F(FipsTest, AKeyPairIsParsedFromItsTexts) {
  const auto [public_key, secret_key] = make_keys(*fips);
  EXPECT_TRUE(is_key(public_key));
  const Key key = parse_secret_key(*fips, secret_key, public_key);
  EXPECT_EQ(public_key_text(*fips, key.get()), public_key);
  EXPECT_NE(make_keys(*fips).first, public_key);
  EXPECT_THROW(parse_secret_key(*fips, make_keys(*fips).second, public_key), TransportError);
}

// How the handshake of two workers ends.
class MixedTest : public FipsTest {
 protected:
  struct Side {
    explicit Side(const Crypto& crypto) : keys(crypto), context(crypto, keys.public_key, keys.secret_key) {}
    Keys keys;
    TlsContext context;
  };

  std::pair<Handshake, Handshake> shake_hands(const Side& calling_side, const Side& called_side) {
    auto [here, there] = socket_pair();
    caller = calling_side.context.connecting(std::move(here), called_side.keys.public_key);
    called = called_side.context.listening(std::move(there));
    Handshake of_caller = Handshake::kNeedsData, of_called = of_caller;
    for (int i = 0; i < 10; ++i) {
      of_caller = of_caller == Handshake::kNeedsData ? caller->shake_hands() : of_caller;
      of_called = of_called == Handshake::kNeedsData ? called->shake_hands() : of_called;
    }
    return {of_caller, of_called};
  }

  std::unique_ptr<TlsChannel> caller, called;
};

TEST_F(MixedTest, TwoWorkersWithFipsExchangeData) {
  const Side calling_side(*fips), called_side(*fips);
  ASSERT_EQ(shake_hands(calling_side, called_side), std::pair(Handshake::kDone, Handshake::kDone));
  EXPECT_EQ(called->peer_key(), calling_side.keys.public_key);
  const std::string data(50'000, 'x');
  const iovec place{const_cast<char*>(data.data()), data.size()};
  EXPECT_EQ(caller->write(&place, 1), static_cast<ssize_t>(data.size()));
  std::string text(data.size(), '\0');
  EXPECT_EQ(called->read(text.data(), text.size()), static_cast<ssize_t>(data.size()));
  EXPECT_TRUE(text == data);
}

TEST_F(MixedTest, AnotherKeyWithFipsIsRefused) {
  const Side calling_side(*fips), called_side(*fips), other_side(*fips);
  auto [here, there] = socket_pair();
  const auto calling = calling_side.context.connecting(std::move(here), other_side.keys.public_key);
  const auto listening = called_side.context.listening(std::move(there));
  Handshake state = Handshake::kNeedsData;
  for (int i = 0; i < 10 && state == Handshake::kNeedsData; ++i) {
    state = calling->shake_hands();
    listening->shake_hands();
  }
  EXPECT_EQ(state, Handshake::kFailed);
  EXPECT_EQ(calling->failure(), "a key is not the one that the other side expects");
}

TEST_F(MixedTest, OneSideWithFipsIsRefusedWithTheReason) {
  const Side with(*fips), without(Crypto::get(false));
  const char* const reason = "the two sides have no kind of key in common; set fips alike for all workers";
  EXPECT_EQ(shake_hands(with, without), std::pair(Handshake::kFailed, Handshake::kFailed));
  EXPECT_EQ(caller->failure(), reason);
  EXPECT_EQ(called->failure(), reason);
  EXPECT_EQ(shake_hands(without, with), std::pair(Handshake::kFailed, Handshake::kFailed));
  EXPECT_EQ(caller->failure(), reason);
  EXPECT_EQ(called->failure(), reason);
}

TEST_F(TlsTest, ServesTwoThreadsAtOnce) {
  // Without the relay between them, so that both threads only wait for each other.
  caller_context = std::make_unique<TlsContext>(crypto(), caller_keys.public_key, caller_keys.secret_key);
  called_context = std::make_unique<TlsContext>(crypto(), called_keys.public_key, called_keys.secret_key);
  auto [caller_fd, called_fd] = socket_pair();
  caller = caller_context->connecting(std::move(caller_fd), called_keys.public_key);
  called = called_context->listening(std::move(called_fd));
  Handshake here = Handshake::kNeedsData, there = Handshake::kNeedsData;
  for (int i = 0; i < 10; ++i) {
    here = here == Handshake::kDone ? here : caller->shake_hands();
    there = there == Handshake::kDone ? there : called->shake_hands();
  }
  ASSERT_EQ(here, Handshake::kDone);
  ASSERT_EQ(there, Handshake::kDone);
  constexpr size_t kSize = size_t{8} << 20;
  const auto send = [](Channel& channel) {
    const std::string data(kSize, 'x');
    for (size_t sent = 0; sent < kSize || !channel.flush();) {
      const iovec place{const_cast<char*>(data.data()) + sent, kSize - sent};
      const ssize_t now = sent < kSize ? channel.write(&place, 1) : -1;
      if (now > 0) {
        sent += static_cast<size_t>(now);
      } else {
        pollfd room{channel.fd(), POLLOUT, 0};
        ::poll(&room, 1, 1000);
      }
    }
  };
  const auto receive = [](Channel& channel, size_t& total) {
    std::string data;
    while (total < kSize) {
      const ssize_t got = read(channel, data, size_t{1} << 20);
      if (got > 0) {
        EXPECT_EQ(data.find_first_not_of('x'), std::string::npos);
        total += static_cast<size_t>(got);
      } else if (got == -1 && errno == EAGAIN) {
        pollfd more{channel.fd(), POLLIN, 0};
        ::poll(&more, 1, 1000);
      } else {
        FAIL();
      }
    }
  };
  size_t by_caller = 0, by_called = 0;
  std::vector<std::thread> threads;
  threads.emplace_back([&] { send(*caller); });
  threads.emplace_back([&] { send(*called); });
  threads.emplace_back([&] { receive(*caller, by_caller); });
  threads.emplace_back([&] { receive(*called, by_called); });
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(by_caller, kSize);
  EXPECT_EQ(by_called, kSize);
}

}  // namespace
}  // namespace rpc_backends::zeromq
