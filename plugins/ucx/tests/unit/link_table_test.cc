// Which link a peer, a token and a proof lead to.
#include "link_table.h"

#include <gtest/gtest.h>

namespace rpc_backends::ucx {
namespace {

Credentials with_proof(char first) {
  Credentials credentials;
  credentials.their_proof[0] = first;
  return credentials;
}

std::string proof(char first) {
  const auto bytes = with_proof(first).their_proof;
  return {bytes.data(), bytes.size()};
}

struct LinkTableTest : testing::Test {
  LinkTable table{1000};
  Link& link = table.add(7);
};

TEST_F(LinkTableTest, AnUnknownPeerHasNoLink) {
  EXPECT_EQ(table.find(7), &link);
  EXPECT_EQ(table.find(8), nullptr);
}

TEST_F(LinkTableTest, AnotherProcessOfAPeerTakesTheProofOfTheFormerOne) {
  table.set_process(link, "first", with_proof('a'));
  link.opened = 3;
  table.set_process(link, "second", with_proof('b'));
  EXPECT_EQ(table.of_proof(proof('a')), nullptr);
  EXPECT_EQ(table.of_proof(proof('b')), &link);
  EXPECT_EQ(link.address, "second");
  EXPECT_EQ(link.opened, 0U);
}

TEST_F(LinkTableTest, ATokenLeadsToTheLinkUntilItIsCleared) {
  const wire::Token token{1, 2};
  table.set_token(link, token);
  EXPECT_EQ(table.of_token(token), &link);
  table.clear_token(link);
  EXPECT_EQ(table.of_token(token), nullptr);
  EXPECT_FALSE(link.their_token);
}

TEST_F(LinkTableTest, AnEarlierAttemptIsNotFound) {
  table.renew(link);
  const uint64_t earlier = link.attempt;
  EXPECT_EQ(table.find(7, earlier), &link);
  table.renew(link);
  EXPECT_EQ(table.find(7, earlier), nullptr);
  EXPECT_EQ(table.find(7, link.attempt), &link);
}

TEST_F(LinkTableTest, NothingLeadsToALinkThatIsRemoved) {
  const wire::Token token{1, 2};
  table.set_process(link, "address", with_proof('a'));
  table.set_token(link, token);
  table.remove(link);
  EXPECT_EQ(table.find(7), nullptr);
  EXPECT_EQ(table.of_token(token), nullptr);
  EXPECT_EQ(table.of_proof(proof('a')), nullptr);
  EXPECT_EQ(table.begin(), table.end());
}

TEST_F(LinkTableTest, ABrokenLinkIsMarked) {
  table.mark_broken(nullptr);
  EXPECT_FALSE(table.has_broken());
  table.mark_broken(&link);
  EXPECT_TRUE(table.has_broken());
  EXPECT_TRUE(link.is_broken);
}

}  // namespace
}  // namespace rpc_backends::ucx
