// Session keys as text.
#include "keys.h"

#include <gtest/gtest.h>

#include "rpc_backends_agents/transport.h"

namespace rpc_backends::zeromq {
namespace {

const Crypto& crypto() {
  return Crypto::get(false);
}

TEST(KeysTest, AKeyPairIsParsedFromItsTexts) {
  const auto [public_key, secret_key] = make_keys(crypto());
  EXPECT_EQ(public_key.size(), kKeySize);
  EXPECT_TRUE(is_key(public_key));
  const Key key = parse_secret_key(crypto(), secret_key, public_key);
  EXPECT_EQ(public_key_text(crypto(), key.get()), public_key);
}

TEST(KeysTest, EachKeyPairIsNew) {
  EXPECT_NE(make_keys(crypto()).first, make_keys(crypto()).first);
}

TEST(KeysTest, KeysThatDoNotBelongTogetherAreAnError) {
  EXPECT_THROW(parse_secret_key(crypto(), make_keys(crypto()).second, make_keys(crypto()).first), TransportError);
}

TEST(KeysTest, AnyOtherTextIsNoKey) {
  std::string text = make_keys(crypto()).first;
  EXPECT_FALSE(is_key(""));
  EXPECT_FALSE(is_key(text + "0"));
  EXPECT_FALSE(is_key(text.substr(1)));
  text[7] = '"';
  EXPECT_FALSE(is_key(text));
  EXPECT_FALSE(is_key(std::string(kKeySize, '#')));  // more than 32 bits
  EXPECT_THROW(parse_secret_key(crypto(), make_keys(crypto()).second, text), TransportError);
}

TEST(KeysTest, AnyOtherDataAreNoSecretKey) {
  const auto [public_key, secret_key] = make_keys(crypto());
  const std::string_view whole = secret_key;
  for (const std::string_view data : {std::string_view(), whole.substr(1), whole.substr(0, whole.size() - 1)}) {
    EXPECT_THROW(parse_secret_key(crypto(), data, public_key), TransportError);
  }
}

TEST(KeysTest, AKeyOfAnotherKindHasNoText) {
  const Key key(EVP_PKEY_Q_keygen(nullptr, nullptr, "X25519"));
  EXPECT_EQ(public_key_text(crypto(), key.get()), "");
  EXPECT_EQ(public_key_text(crypto(), nullptr), "");
}

}  // namespace
}  // namespace rpc_backends::zeromq
