#include "event_loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "run_posted.h"

namespace rpc_backends::zeromq {
namespace {

// No passing test waits that long.
constexpr std::chrono::seconds kLimit{60};

template <typename Future>
bool is_ready(Future&& future) {
  return future.wait_for(kLimit) == std::future_status::ready;
}

TEST(EventLoop, RunsPostedTasksInOrderOnItsThread) {
  std::vector<int> order;
  std::thread::id thread;
  EventLoop loop;                  // its tasks use what is above
  for (int i = 0; i < 300; ++i) {  // more than one turn
    loop.post([&order, &thread, i] {
      order.push_back(i);
      thread = std::this_thread::get_id();
    });
  }
  run_posted(loop);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_EQ(order.size(), 300U);
  EXPECT_NE(thread, std::this_thread::get_id());
}

TEST(EventLoop, RunsTimedTasksByTheirTimes) {
  std::vector<int> order;
  std::promise<void> last;
  EventLoop loop;  // its tasks use what is above
  const auto now = Clock::now();
  loop.at(now + std::chrono::milliseconds(20), [&] {
    order.push_back(2);
    last.set_value();
  });
  loop.at(now + std::chrono::milliseconds(1), [&] { order.push_back(1); });
  ASSERT_TRUE(is_ready(last.get_future()));
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  EXPECT_GE(Clock::now(), now + std::chrono::milliseconds(20));
}

TEST(EventLoop, WatchesADescriptorUntilUnwatch) {
  Signal signal;
  std::promise<void> seen;
  int runs = 0;
  EventLoop loop;  // its tasks use what is above
  const uint64_t id = loop.watch(signal.fd(), [&] {
    signal.clear();
    if (++runs == 1) {
      seen.set_value();
    }
  });
  signal.set();
  ASSERT_TRUE(is_ready(seen.get_future()));
  loop.unwatch(id, signal.fd());
  signal.set();
  run_posted(loop);
  EXPECT_EQ(runs, 1);
}

TEST(EventLoop, ATaskMayUnwatchItself) {
  Signal signal;
  std::promise<uint64_t> id;
  std::promise<void> done;
  auto known = id.get_future().share();
  EventLoop loop;  // its tasks use what is above
  id.set_value(loop.watch(signal.fd(), [&loop, &signal, &done, known] {
    loop.unwatch(known.get(), signal.fd());
    done.set_value();
  }));
  signal.set();
  EXPECT_TRUE(is_ready(done.get_future()));
}

TEST(EventLoop, AnExceptionEndsOnlyItsTask) {
  EventLoop loop;
  loop.post([] { throw std::runtime_error("on purpose"); });
  run_posted(loop);
  EXPECT_EQ(loop.failures(), 1U);
}

TEST(EventLoop, TasksThatPostTasksDoNotStarveDescriptors) {
  Signal signal;
  std::promise<void> seen;
  std::atomic<bool> over{false};
  EventLoop loop;  // its tasks use what is above
  std::function<void()> again = [&] {
    if (!over) {
      loop.post(again);
    }
  };
  loop.watch(signal.fd(), [&] {
    signal.clear();
    over = true;
    seen.set_value();
  });
  loop.post(again);
  signal.set();
  EXPECT_TRUE(is_ready(seen.get_future()));
  over = true;
  loop.stop();
}

TEST(EventLoop, StopDestroysTasksThatNeverRun) {
  auto loop = std::make_unique<EventLoop>();
  auto owned = std::make_shared<int>();
  const std::weak_ptr<int> watched = owned;
  loop->at(Clock::now() + std::chrono::hours(1), [owned = std::move(owned)] {});
  loop->stop();
  EXPECT_TRUE(watched.expired());
}

}  // namespace
}  // namespace rpc_backends::zeromq
