#include "base/scheduler.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

namespace rpc_backends {
namespace {

constexpr double kLong = 3600;
// No passing test waits that long.
constexpr std::chrono::seconds kLimit{60};

class SchedulerTest : public testing::Test {
 protected:
  SchedulerTest() { scheduler->start(); }
  ~SchedulerTest() override { scheduler->stop(10); }

  const std::shared_ptr<ThreadedScheduler> scheduler = std::make_shared<ThreadedScheduler>();
};

TEST_F(SchedulerTest, RunsJobsThatAreDueFirstFirst) {
  // The first job is never due here: a busy machine may run two jobs at once that are due one after the other.
  std::promise<void> early, late;
  std::atomic<bool> was_early{false};
  scheduler->after(kLong, [&] { late.set_value(); });
  scheduler->after(0.001, [&] {
    was_early = late.get_future().wait_for(std::chrono::seconds(0)) == std::future_status::timeout;
    early.set_value();
  });
  EXPECT_EQ(early.get_future().wait_for(kLimit), std::future_status::ready);
  EXPECT_TRUE(was_early);
  scheduler->stop(60);  // before the variables that the jobs use are destroyed
}

TEST_F(SchedulerTest, GivesEachPostAThreadEvenIfEarlierOnesBlock) {
  constexpr int kJobs = 5;
  std::promise<void> all;
  const std::shared_future<void> wait = all.get_future().share();
  std::atomic<int> running{0};
  for (int i = 0; i < kJobs; ++i) {
    scheduler->post([&] {
      if (++running == kJobs) {
        all.set_value();
      }
      wait.wait();
    });
  }
  EXPECT_EQ(wait.wait_for(kLimit), std::future_status::ready);
  scheduler->stop(60);  // before the variables that the jobs use are destroyed
}

TEST_F(SchedulerTest, DoesNotRunACancelledJob) {
  std::promise<void> later;
  bool has_run = false;
  const auto key = scheduler->after(0.05, [&] { has_run = true; });
  scheduler->cancel(key);
  scheduler->after(0.06, [&] { later.set_value(); });
  EXPECT_EQ(later.get_future().wait_for(kLimit), std::future_status::ready);
  EXPECT_FALSE(has_run);
  scheduler->stop(60);  // before the variables that the jobs use are destroyed
}

TEST_F(SchedulerTest, StopDestroysJobsThatAreNotDue) {
  auto owned = std::make_shared<int>();
  const std::weak_ptr<int> watched = owned;
  scheduler->after(kLong, [owned = std::move(owned)] {});
  scheduler->stop(10);
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(scheduler->after(0, [] { FAIL() << "a job runs after stop()"; }).second, 2U);
}

TEST_F(SchedulerTest, GoesOnAfterAJobThatThrows) {
  std::promise<void> next;
  scheduler->post([] { throw std::runtime_error("on purpose"); });
  scheduler->post([&] { next.set_value(); });
  EXPECT_EQ(next.get_future().wait_for(kLimit), std::future_status::ready);
  scheduler->stop(60);  // before the variables that the jobs use are destroyed
}

TEST(Scheduler, RunsWhatWasAddedBeforeItsStart) {
  const auto scheduler = std::make_shared<ThreadedScheduler>();
  std::promise<void> done;
  scheduler->after(0, [&] { done.set_value(); });
  scheduler->start();
  EXPECT_EQ(done.get_future().wait_for(kLimit), std::future_status::ready);
  scheduler->stop(10);
}

}  // namespace
}  // namespace rpc_backends
