#include "agent/event_order.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace rpc_backends {
namespace {

using Clock = std::chrono::steady_clock;
// EventOrder gives up after a second; less than that shows that it did not have to.
constexpr std::chrono::milliseconds kNoWait{900};

TEST(EventOrder, TheFirstEventWaitsForNothing) {
  EventOrder order;
  const auto begin = Clock::now();
  EventOrder::Handling(order, 1).wait_for_earlier();
  EXPECT_LT(Clock::now() - begin, kNoWait);
}

TEST(EventOrder, AnEventWaitsUntilAllEarlierOnesAreNoted) {
  EventOrder order;
  EventOrder::Handling first(order, 1), second(order, 2);
  std::atomic<int> noted{0};
  std::thread waiting([&] {
    const EventOrder::Handling third(order, 3);
    third.wait_for_earlier();
    EXPECT_EQ(noted, 2);
  });
  ++noted;
  second.note();
  ++noted;
  first.note();
  waiting.join();
}

TEST(EventOrder, ADestroyedEventIsNoted) {
  EventOrder order;
  {
    const EventOrder::Handling first(order, 1);
  }
  const auto begin = Clock::now();
  EventOrder::Handling(order, 2).wait_for_earlier();
  EXPECT_LT(Clock::now() - begin, kNoWait);
}

TEST(EventOrder, AnEventWithoutANumberNeitherWaitsNorCounts) {
  EventOrder order;
  const auto begin = Clock::now();
  EventOrder::Handling(order, 0).wait_for_earlier();
  EventOrder::Handling().wait_for_earlier();
  EventOrder::Handling(order, 1).wait_for_earlier();
  EXPECT_LT(Clock::now() - begin, kNoWait);
}

TEST(EventOrder, ASkippedNumberDelaysOnlyTheFirstEventAfterIt) {
  EventOrder order;
  EventOrder::Handling(order, 3).wait_for_earlier();  // 1 and 2 never come
  const auto begin = Clock::now();
  EventOrder::Handling(order, 4).wait_for_earlier();
  EXPECT_LT(Clock::now() - begin, kNoWait);
}

TEST(EventOrder, CloseEndsAllWaits) {
  EventOrder order;
  const EventOrder::Handling first(order, 1);
  const auto begin = Clock::now();
  std::thread waiting([&] { EventOrder::Handling(order, 2).wait_for_earlier(); });
  order.close();
  waiting.join();
  EXPECT_LT(Clock::now() - begin, kNoWait);
}

TEST(EventOrder, ManyThreadsNoteEventsInAnyOrder) {
  EventOrder order;
  constexpr uint64_t kThreads = 8, kEvents = 400;
  std::atomic<uint64_t> next{1};
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (uint64_t number = next++; number <= kEvents; number = next++) {
        const EventOrder::Handling handling(order, number);
        if (number % 50 == 0) {
          handling.wait_for_earlier();
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  const auto begin = Clock::now();
  EventOrder::Handling(order, kEvents + 1).wait_for_earlier();
  EXPECT_LT(Clock::now() - begin, kNoWait);
}

}  // namespace
}  // namespace rpc_backends
