#include "connection_proof.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

namespace rpc_backends::ucx {
namespace {

const ConnectionKey kKey({1, 2, 3, 4});

TEST(ConnectionKey, AcceptsItsOwnProofForThatReceiverOnly) {
  const auto proof = kKey.prove(5, 1, "127.0.0.1 port 80");
  EXPECT_TRUE(kKey.is_valid(proof, "127.0.0.1 port 80"));
  EXPECT_FALSE(kKey.is_valid(proof, "127.0.0.1 port 81"));
  EXPECT_FALSE(ConnectionKey({1, 2, 3, 5}).is_valid(proof, "127.0.0.1 port 80"));
}

TEST(ConnectionKey, RefusesAProofThatWasChanged) {
  const auto proof = kKey.prove(5, 1, "receiver");
  auto changed = proof;
  ++changed.number;
  EXPECT_FALSE(kKey.is_valid(changed, "receiver"));
  changed = proof;
  ++changed.connector;
  EXPECT_FALSE(kKey.is_valid(changed, "receiver"));
  changed = proof;
  ++changed.magic;
  EXPECT_FALSE(kKey.is_valid(changed, "receiver"));
  changed = proof;
  changed.tag[1] ^= 1;
  EXPECT_FALSE(kKey.is_valid(changed, "receiver"));
}

TEST(ConnectionKey, AnAnswerBelongsToOneProofAndIsNoProof) {
  const auto first = kKey.prove(5, 1, "receiver"), second = kKey.prove(5, 2, "receiver");
  EXPECT_TRUE(is_same(kKey.answer_to(first), kKey.answer_to(first)));
  EXPECT_FALSE(is_same(kKey.answer_to(first), kKey.answer_to(second)));
  EXPECT_FALSE(is_same(kKey.answer_to(first), kKey.prove(5, 1, "").tag));
}

ConnectionKey::Proof numbered(uint64_t connector, uint64_t number) {
  ConnectionKey::Proof proof;
  proof.connector = connector;
  proof.number = number;
  return proof;
}

TEST(UsedProofs, EachProofIsUsedOnce) {
  UsedProofs used;
  EXPECT_TRUE(used.use(numbered(1, 1)));
  EXPECT_FALSE(used.use(numbered(1, 1)));
  EXPECT_TRUE(used.use(numbered(2, 1)));
}

TEST(UsedProofs, ProofsMayArriveSixtyThreeNumbersLate) {
  UsedProofs used;
  EXPECT_TRUE(used.use(numbered(1, 100)));
  EXPECT_TRUE(used.use(numbered(1, 37)));
  EXPECT_FALSE(used.use(numbered(1, 37)));
  EXPECT_FALSE(used.use(numbered(1, 36)));  // too old to tell
  EXPECT_TRUE(used.use(numbered(1, 99)));
  EXPECT_FALSE(used.use(numbered(1, 100)));
}

TEST(UsedProofs, EachOfTheLastSixtyFourIsUsedOnce) {
  UsedProofs used;
  for (const bool is_first : {true, false}) {
    for (uint64_t number = 164; number > 100; --number) {
      EXPECT_EQ(used.use(numbered(1, number)), is_first) << number;
    }
  }
}

TEST(UsedProofs, ALargeStepForgetsNoUsedProof) {
  UsedProofs used;
  EXPECT_TRUE(used.use(numbered(1, 1)));
  EXPECT_TRUE(used.use(numbered(1, UINT64_MAX)));
  EXPECT_FALSE(used.use(numbered(1, UINT64_MAX)));
  EXPECT_FALSE(used.use(numbered(1, 1)));
  EXPECT_TRUE(used.use(numbered(1, UINT64_MAX - 1)));
}

TEST(TextOfAddress, HasAddressAndPort) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(4242);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(text_of_address(reinterpret_cast<const sockaddr*>(&address)), "127.0.0.1 port 4242");
  sockaddr_in6 wide{};
  wide.sin6_family = AF_INET6;
  wide.sin6_port = htons(1);
  wide.sin6_addr = in6addr_loopback;
  EXPECT_EQ(text_of_address(reinterpret_cast<const sockaddr*>(&wide)), "::1 port 1");
  address.sin_family = AF_UNIX;
  EXPECT_EQ(text_of_address(reinterpret_cast<const sockaddr*>(&address)), "");
}

}  // namespace
}  // namespace rpc_backends::ucx
