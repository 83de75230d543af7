#include "agent/lost_peers.h"

#include <gtest/gtest.h>

namespace rpc_backends {
namespace {

TEST(LostPeers, APeerIsLostUntilItIsFoundAgain) {
  LostPeers lost;
  EXPECT_EQ(lost.why(1), "");
  lost.add(1, "its process has ended", 1);
  lost.add(2, "it does not answer", 2);
  EXPECT_EQ(lost.why(1), "the connection is lost: its process has ended");
  EXPECT_EQ(lost.why(3), "");
  lost.add(1, "it has closed the connection", 3);
  EXPECT_EQ(lost.why(1), "the connection is lost: it has closed the connection");
  lost.remove(1, 4, 1);
  EXPECT_EQ(lost.why(1), "");
  EXPECT_EQ(lost.why(2), "the connection is lost: it does not answer");
}

TEST(LostPeers, AnEarlierEventChangesNothing) {
  LostPeers lost;
  lost.remove(1, 5, 1);
  lost.add(1, "gone", 4);
  EXPECT_EQ(lost.why(1), "");
  lost.add(1, "gone again", 6);
  lost.remove(1, 5, 1);
  EXPECT_EQ(lost.why(1), "the connection is lost: gone again");
  lost.add(2, "gone", 3);  // the numbers of peers do not depend on each other
  EXPECT_EQ(lost.why(2), "the connection is lost: gone");
}

TEST(LostPeers, ALossThatIsHandledAfterTheNewConnectionEndsOnlyTheOlderCalls) {
  LostPeers lost;
  lost.remove(1, 6, 30);
  EXPECT_EQ(lost.add(1, "gone", 5), 30U);
  EXPECT_EQ(lost.add(1, "gone again", 7), LostPeers::kAllCalls);
  EXPECT_EQ(lost.add(2, "gone", 5), LostPeers::kAllCalls);
}

TEST(LostPeers, AnEventWithoutANumberCountsAlways) {
  LostPeers lost;
  lost.add(1, "gone", 0);
  EXPECT_EQ(lost.why(1), "the connection is lost: gone");
  lost.remove(1, 0, 1);
  EXPECT_EQ(lost.why(1), "");
}

TEST(LostPeers, APeerThatIsForgottenIsNotLost) {
  LostPeers lost;
  lost.add(1, "gone", 5);
  lost.forget(1);
  EXPECT_EQ(lost.why(1), "");
  lost.add(1, "gone", 6);
  EXPECT_EQ(lost.why(1), "the connection is lost: gone");
}

}  // namespace
}  // namespace rpc_backends
