// What keeps a worker busy, and which peers are lost.
#include "agent/activity.h"

#include <gtest/gtest.h>

#include <thread>

#include "agent/lost_peers.h"

namespace rpc_backends {
namespace {

TEST(Activity, AWaitEndsWhenTheLastRequestEnds) {
  Activity activity;
  activity.begin_request();
  std::atomic<int> checks{0};
  std::thread waiting([&] {
    activity.wait(60, [&] {
      ++checks;
      return !activity.is_running();
    });
  });
  while (checks == 0) {
    std::this_thread::yield();
  }
  activity.end_request();
  activity.tell();
  waiting.join();
  EXPECT_EQ(activity.active(), 0);
}

TEST(Activity, AWaitEndsAfterItsTime) {
  Activity activity;
  activity.begin_request();
  activity.wait(0.002, [&] { return !activity.is_running(); });
  EXPECT_TRUE(activity.is_running());
}

TEST(Activity, ARequestWithAPendingFutureDoesNotRun) {
  Activity activity;
  for (int i = 0; i < 2; ++i) {
    activity.begin_request();
  }
  activity.count_pending(7, 1);
  EXPECT_TRUE(activity.is_running());
  activity.count_own_pending(1);
  EXPECT_FALSE(activity.is_running());
  EXPECT_EQ(activity.pending(), 1);
  EXPECT_EQ(activity.all_pending(), 2);
}

TEST(Activity, KnowsTheCallersOfPendingRequests) {
  Activity activity;
  const auto is_seven = [](int caller) { return caller == 7; };
  activity.count_own_pending(1);
  activity.count_pending(8, 1);
  EXPECT_FALSE(activity.has_pending_of(is_seven));
  activity.count_pending(7, 1);
  EXPECT_TRUE(activity.has_pending_of(is_seven));
  activity.count_pending(7, -1);
  EXPECT_FALSE(activity.has_pending_of(is_seven));
}

TEST(LostPeers, GiveTheLastReasonUntilThePeerIsFound) {
  LostPeers lost;
  EXPECT_EQ(lost.why(3), "");
  lost.add(3, "its process has ended", 1);
  lost.add(4, "no route", 1);
  lost.add(3, "it has not answered", 2);
  EXPECT_EQ(lost.why(3), "the connection is lost: it has not answered");
  lost.remove(3, 3, 1);
  EXPECT_EQ(lost.why(3), "");
  EXPECT_EQ(lost.why(4), "the connection is lost: no route");
}

}  // namespace
}  // namespace rpc_backends
