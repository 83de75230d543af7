// Certificates of an authority: in the handshake of TLS, and as signatures.
#include "rpc_backends_agents/openssl/certificates.h"

#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <memory>
#include <string>
#include <utility>

#include "authority.h"
#include "keys.h"
#include "rpc_backends_agents/transport.h"
#include "socket_pair.h"
#include "tls.h"

namespace rpc_backends::zeromq {
namespace {

using Handshake = TlsChannel::Handshake;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class CertificatesTest : public testing::Test {
 protected:
  static const Crypto& crypto() { return Crypto::get(false); }

  void use(const std::shared_ptr<Certificates>& caller_has, const std::shared_ptr<Certificates>& called_has) {
    caller_context = std::make_unique<TlsContext>(crypto(), *caller_has);
    called_context = std::make_unique<TlsContext>(crypto(), *called_has);
  }

  // Returns whether both sides have finished the handshake.
  bool connect(const std::string& expected) {
    auto [caller_fd, called_fd] = socket_pair();
    caller = caller_context->connecting(std::move(caller_fd), key_text(crypto(), expected));
    called = called_context->listening(std::move(called_fd));
    Handshake here = Handshake::kNeedsData, there = Handshake::kNeedsData;
    const auto goes_on = [](Handshake state) { return state != Handshake::kDone && state != Handshake::kFailed; };
    for (int i = 0; i < 6; ++i) {
      here = goes_on(here) ? caller->shake_hands() : here;
      there = goes_on(there) ? called->shake_hands() : there;
    }
    return here == Handshake::kDone && there == Handshake::kDone;
  }

  Authority authority;
  std::shared_ptr<Certificates> a = authority.certify({"URI:spiffe://x/a"}), b = authority.certify({"DNS:b"});
  std::unique_ptr<TlsContext> caller_context, called_context;
  std::unique_ptr<TlsChannel> caller, called;
};

TEST_F(CertificatesTest, BothSidesLearnTheIdentityOfTheOther) {
  use(a, b);
  ASSERT_TRUE(connect("b"));
  EXPECT_EQ(caller->peer().identity, "b");
  EXPECT_EQ(called->peer().identity, "spiffe://x/a");
  EXPECT_EQ(called->peer().serial, "7");
  EXPECT_EQ(called->peer_key(), key_text(crypto(), "spiffe://x/a"));
}

TEST_F(CertificatesTest, EveryKindOfKeyIsAccepted) {
  for (const char* const kind : {"EC", "ED25519", "RSA"}) {
    use(authority.certify({"DNS:a", -60, 60, 1, kind}), authority.certify({"DNS:b", -60, 60, 2, kind}));
    EXPECT_TRUE(connect("b")) << kind << caller->failure() << called->failure();
  }
}

TEST_F(CertificatesTest, TheSideThatConnectsRefusesAnotherIdentity) {
  use(a, b);
  EXPECT_FALSE(connect("c"));
  EXPECT_TRUE(has(caller->failure(), "has the certificate of b (certificate 7)")) << caller->failure();
  EXPECT_FALSE(has(called->failure(), "another worker")) << called->failure();
}

TEST_F(CertificatesTest, ExpiredCertificatesAreRefusedWithTheReasonAtOneSide) {
  use(authority.certify({"DNS:a", -7200, -60}), b);
  EXPECT_FALSE(connect("b"));
  EXPECT_TRUE(has(called->failure(), "the certificate of a (certificate 7) is not accepted: certificate has expired"))
      << called->failure();
  EXPECT_FALSE(has(caller->failure(), "expired"));
}

TEST_F(CertificatesTest, CertificatesThatAreNotValidYetAreRefused) {
  use(a, authority.certify({"DNS:b", 3600, 7200}));
  EXPECT_FALSE(connect("b"));
  EXPECT_TRUE(has(caller->failure(), "not yet valid")) << caller->failure();
}

TEST_F(CertificatesTest, AnotherAuthorityOfTheSameNameIsRefused) {
  const Authority foreign_authority;
  use(foreign_authority.certify({"URI:spiffe://x/a"}, authority.pem()), b);
  EXPECT_FALSE(connect("b"));
  EXPECT_TRUE(has(called->failure(), "is not accepted")) << called->failure();
}

TEST_F(CertificatesTest, CertificatesForAnotherUseAreRefused) {
  use(authority.certify({"DNS:a", -60, 60, 7, "EC", "emailProtection"}), b);
  EXPECT_FALSE(connect("b"));
  EXPECT_TRUE(has(called->failure(), "purpose")) << called->failure();
}

TEST_F(CertificatesTest, RevokedCertificatesAreRefused) {
  for (const char* const revoked : {"7", "spiffe://x/a"}) {
    use(a, b);
    called_context->revoked().set({revoked});
    EXPECT_FALSE(connect("b"));
    EXPECT_EQ(called->failure(), "the certificate of spiffe://x/a (certificate 7) is revoked");
    called_context->revoked().set({});
    EXPECT_TRUE(connect("b"));
  }
}

TEST_F(CertificatesTest, RenewedCertificatesAreShownOnNewConnections) {
  use(authority.certify({"DNS:a", -7200, -60}), b);
  EXPECT_FALSE(connect("b"));
  caller_context->renew(*authority.certify({"DNS:a", -60, 60, 8}));
  ASSERT_TRUE(connect("b"));
  EXPECT_EQ(called->peer().serial, "8");
}

TEST_F(CertificatesTest, SelfSignedSessionKeysAreRefused) {
  use(a, b);
  const auto [public_key, secret_key] = make_keys(crypto());
  caller_context = std::make_unique<TlsContext>(crypto(), public_key, secret_key);
  EXPECT_FALSE(connect("b"));
}

TEST_F(CertificatesTest, AClientWithoutACertificateIsRefused) {
  use(a, b);
  auto [caller_fd, called_fd] = socket_pair();
  called = called_context->listening(std::move(called_fd));
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
  const std::unique_ptr<SSL, decltype(&SSL_free)> client(SSL_new(context.get()), &SSL_free);
  SSL_set_fd(client.get(), caller_fd->get());
  Handshake state = Handshake::kNeedsData;
  for (int i = 0; i < 4 && state != Handshake::kFailed; ++i) {
    SSL_connect(client.get());
    state = called->shake_hands();
    ASSERT_NE(state, Handshake::kDone);
  }
  EXPECT_TRUE(has(called->failure(), "did not return a certificate")) << called->failure();
}

TEST_F(CertificatesTest, ClientsOfTls12AreRefused) {
  use(a, b);
  auto [caller_fd, called_fd] = socket_pair();
  called = called_context->listening(std::move(called_fd));
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
  ASSERT_EQ(SSL_CTX_set_max_proto_version(context.get(), TLS1_2_VERSION), 1);
  a->use_in(context.get());
  const std::unique_ptr<SSL, decltype(&SSL_free)> client(SSL_new(context.get()), &SSL_free);
  SSL_set_fd(client.get(), caller_fd->get());
  SSL_connect(client.get());
  EXPECT_EQ(called->shake_hands(), Handshake::kFailed);
  EXPECT_TRUE(has(called->failure(), "unsupported protocol")) << called->failure();
}

// --- identities --------------------------------------------------------------------------------------

TEST_F(CertificatesTest, AUriComesBeforeDnsNames) {
  EXPECT_EQ(authority.certify({"DNS:b,URI:spiffe://x/a,DNS:c"})->subject().identity, "spiffe://x/a");
  EXPECT_EQ(authority.certify({"DNS:b,DNS:c"})->subject().identity, "b");
}

TEST_F(CertificatesTest, CertificatesWithoutOneIdentityAreRefused) {
  for (const char* const names : {"URI:spiffe://x/a,URI:spiffe://x/b", "email:a@b", "IP:127.0.0.1", ""}) {
    EXPECT_THROW(authority.certify({names}), TransportError) << names;
  }
}

TEST_F(CertificatesTest, FilesThatDoNotBelongTogetherAreRefused) {
  EXPECT_THROW(authority.certify({"DNS:a"}, "no certificate"), TransportError);
  EXPECT_THROW(authority.certify({"DNS:a"}, ""), TransportError);
  EXPECT_THROW(Certificates(crypto(), authority.pem(), authority.pem(), authority.pem()), TransportError);
}

// --- signatures --------------------------------------------------------------------------------------

TEST_F(CertificatesTest, ASignatureSaysWhoseItIs) {
  for (const char* const kind : {"EC", "ED25519", "RSA"}) {
    const auto signer = authority.certify({"DNS:a", -60, 60, 0xabc, kind});
    const Subject subject = b->check(signer->chain(), signer->sign("data"), "data");
    EXPECT_EQ(subject.identity, "a");
    EXPECT_EQ(subject.serial, "abc");
  }
}

TEST_F(CertificatesTest, WrongSignaturesAreRefused) {
  const std::string signature = a->sign("data");
  EXPECT_THROW(b->check(a->chain(), signature, "other data"), TransportError);
  EXPECT_THROW(b->check(b->chain(), signature, "data"), TransportError);
  EXPECT_THROW(b->check(a->chain(), "", "data"), TransportError);
  EXPECT_THROW(b->check("", signature, "data"), TransportError);
  EXPECT_THROW(b->check(a->chain() + "x", signature, "data"), TransportError);
  EXPECT_THROW(b->check(std::string(20'000, 'x'), signature, "data"), TransportError);
}

TEST_F(CertificatesTest, SignaturesOfExpiredCertificatesAreRefused) {
  const auto expired = authority.certify({"DNS:a", -7200, -60});
  EXPECT_THROW(b->check(expired->chain(), expired->sign("data"), "data"), TransportError);
}

}  // namespace
}  // namespace rpc_backends::zeromq
