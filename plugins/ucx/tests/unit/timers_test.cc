#include "timers.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <stdexcept>
#include <vector>

namespace rpc_backends::ucx {
namespace {

bool is_readable(const Timers& timers, int milliseconds) {
  pollfd waiting{timers.fd(), POLLIN, 0};
  return ::poll(&waiting, 1, milliseconds) == 1;
}

TEST(Timers, RunWhatIsDueByTime) {
  Timers timers;
  std::vector<int> order;
  const auto now = Clock::now();
  timers.at(now - std::chrono::milliseconds(1), [&] { order.push_back(2); });
  timers.at(now - std::chrono::milliseconds(2), [&] { order.push_back(1); });
  timers.at(now + std::chrono::hours(1), [&] { order.push_back(3); });
  ASSERT_TRUE(is_readable(timers, 60000));
  timers.run();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  EXPECT_FALSE(is_readable(timers, 0));
}

TEST(Timers, AnEarlierTaskMovesTheDescriptorForward) {
  Timers timers;
  timers.at(Clock::now() + std::chrono::hours(1), [] {});
  EXPECT_FALSE(is_readable(timers, 0));
  timers.at(Clock::now() + std::chrono::milliseconds(1), [] {});
  EXPECT_TRUE(is_readable(timers, 60000));
}

TEST(Timers, ATaskMayAddTasks) {
  Timers timers;
  int runs = 0;
  timers.at(Clock::now(), [&] {
    ++runs;
    timers.at(Clock::now() - std::chrono::hours(1), [&] { ++runs; });
  });
  timers.run();
  EXPECT_EQ(runs, 2);
}

TEST(Timers, AnExceptionLeavesTheLaterTasks) {
  Timers timers;
  bool has_run = false;
  timers.at(Clock::now() - std::chrono::hours(1), [] { throw std::runtime_error("on purpose"); });
  timers.at(Clock::now(), [&] { has_run = true; });
  EXPECT_THROW(timers.run(), std::runtime_error);
  ASSERT_TRUE(is_readable(timers, 60000));
  timers.run();
  EXPECT_TRUE(has_run);
}

}  // namespace
}  // namespace rpc_backends::ucx
