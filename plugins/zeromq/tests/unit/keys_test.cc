// Session keys as text.
#include "keys.h"

#include <gtest/gtest.h>

#include "rpc_backends_agents/transport.h"

namespace rpc_backends::zeromq {
namespace {

TEST(KeysTest, AKeyPairIsParsedFromItsTexts) {
  const auto [public_key, secret_key] = make_keys();
  EXPECT_EQ(public_key.size(), kKeySize);
  EXPECT_TRUE(is_key(public_key));
  const Key key = parse_secret_key(secret_key, public_key);
  EXPECT_EQ(public_key_text(key.get()), public_key);
}

TEST(KeysTest, EachKeyPairIsNew) {
  EXPECT_NE(make_keys().first, make_keys().first);
}

TEST(KeysTest, KeysThatDoNotBelongTogetherAreAnError) {
  EXPECT_THROW(parse_secret_key(make_keys().second, make_keys().first), TransportError);
}

TEST(KeysTest, AnyOtherTextIsNoKey) {
  std::string text = make_keys().first;
  EXPECT_FALSE(is_key(""));
  EXPECT_FALSE(is_key(text + "0"));
  EXPECT_FALSE(is_key(text.substr(1)));
  text[7] = '"';
  EXPECT_FALSE(is_key(text));
  EXPECT_FALSE(is_key(std::string(kKeySize, '#')));  // more than 32 bits
  EXPECT_THROW(parse_secret_key(text, make_keys().first), TransportError);
}

TEST(KeysTest, AKeyOfAnotherKindHasNoText) {
  const Key key(EVP_PKEY_Q_keygen(nullptr, nullptr, "X25519"));
  EXPECT_EQ(public_key_text(key.get()), "");
  EXPECT_EQ(public_key_text(nullptr), "");
}

}  // namespace
}  // namespace rpc_backends::zeromq
