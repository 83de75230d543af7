#include "agent/lost_peers.h"

#include <gtest/gtest.h>

namespace rpc_backends {
namespace {

TEST(LostPeers, APeerIsLostUntilItIsFoundAgain) {
  LostPeers lost;
  EXPECT_EQ(lost.why(1), "");
  lost.add(1, "its process has ended");
  lost.add(2, "it does not answer");
  EXPECT_EQ(lost.why(1), "the connection is lost: its process has ended");
  EXPECT_EQ(lost.why(3), "");
  lost.add(1, "it has closed the connection");
  EXPECT_EQ(lost.why(1), "the connection is lost: it has closed the connection");
  lost.remove(1);
  EXPECT_EQ(lost.why(1), "");
  EXPECT_EQ(lost.why(2), "the connection is lost: it does not answer");
}

}  // namespace
}  // namespace rpc_backends
