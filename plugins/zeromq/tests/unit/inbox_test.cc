// Who reads the sources, and which thread gets which event.
#include "inbox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "racing.h"

namespace rpc_backends::zeromq {
namespace {

struct FunctionSource : Source {
  explicit FunctionSource(std::function<void()> function) : function(std::move(function)) {}
  void pump() override { function(); }
  const std::function<void()> function;
};

TEST(Inbox, GivesEventsInOrderAndNumbersThem) {
  Inbox inbox;
  for (const int peer : {4, 5, 6}) {
    inbox.push(event_of(peer));
  }
  for (const int peer : {4, 5, 6}) {
    Event event;
    ASSERT_EQ(inbox.receive(event), Received::kEvent);
    EXPECT_EQ(event.peer, peer);
    EXPECT_EQ(event.order, static_cast<uint64_t>(peer - 3));
  }
}

TEST(Inbox, ReceiveEndsAtItsDeadline) {
  Inbox inbox;
  Event event;
  EXPECT_EQ(inbox.receive(event, Clock::now()), Received::kTimeout);
  EXPECT_EQ(inbox.receive(event, Clock::now() + std::chrono::milliseconds(2)), Received::kTimeout);
}

TEST(Inbox, CloseEndsAllThreadsAndDropsEvents) {
  Inbox inbox;
  expect_close_to_end_all_threads(inbox);
}

TEST(Inbox, CloseReleasesTheMemoryOfEvents) {
  Inbox inbox;
  expect_close_to_release_events(inbox);
}

TEST(Inbox, AThreadThatWaitsReadsTheSource) {
  Inbox inbox;
  Signal signal;
  const auto source = std::make_shared<FunctionSource>([&] {
    signal.clear();
    inbox.push(event_of(9));
  });
  inbox.add(signal.fd(), source);
  signal.set();
  Event event;
  ASSERT_EQ(inbox.receive(event, limit()), Received::kEvent);
  EXPECT_EQ(event.peer, 9);
}

TEST(Inbox, ASourceThatWasRemovedOrDestroyedIsNotRead) {
  Inbox inbox;
  Signal removed, destroyed;
  const auto fail = [] { FAIL() << "it is read"; };
  const auto kept = std::make_shared<FunctionSource>(fail);
  const uint64_t id = inbox.add(removed.fd(), kept);
  inbox.add(destroyed.fd(), std::make_shared<FunctionSource>(fail));
  inbox.remove(id, removed.fd());
  removed.set();
  destroyed.set();
  inbox.again(id);
  Event event;
  EXPECT_EQ(inbox.receive(event, Clock::now() + std::chrono::milliseconds(1)), Received::kTimeout);
}

TEST(Inbox, ASourceIsReadByOneThreadUntilItIsRearmed) {
  Inbox inbox;
  Signal signal;
  std::atomic<int> reading{0}, reads{0};
  uint64_t id = 0;
  const auto source = std::make_shared<FunctionSource>([&] {
    EXPECT_EQ(++reading, 1);
    std::this_thread::yield();
    const int number = ++reads;
    inbox.push(event_of(number));
    --reading;
    if (number < 100) {
      inbox.rearm(id, signal.fd());  // the descriptor stays readable
    }
  });
  id = inbox.add(signal.fd(), source);
  signal.set();
  std::atomic<int> received{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      Event event;
      while (inbox.receive(event, limit()) == Received::kEvent) {
        if (++received == 100) {
          inbox.close();
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(received, 100);
  EXPECT_EQ(reads, 100);
}

TEST(Inbox, AgainReadsTheSourceOnceMoreWithoutItsDescriptor) {
  Inbox inbox;
  Signal signal;
  int reads = 0;
  uint64_t id = 0;
  const auto source = std::make_shared<FunctionSource>([&] {
    if (++reads < 3) {
      inbox.again(id);
    } else {
      inbox.push(event_of(reads));
    }
  });
  id = inbox.add(signal.fd(), source);
  inbox.again(id);
  Event event;
  ASSERT_EQ(inbox.receive(event, limit()), Received::kEvent);
  EXPECT_EQ(event.peer, 3);
}

TEST(Inbox, AnotherThreadReadsOnWhileOneIsBlockedInAnEvent) {
  // Often, because the other thread must be asleep when the first one reads.
  for (int round = 0; round < 200 && !HasFailure(); ++round) {
    Inbox inbox;
    Signal signal;
    uint64_t id = 0;
    std::atomic<int> reads{0}, busy{0};
    const auto source = std::make_shared<FunctionSource>([&] {
      const int number = ++reads;
      signal.clear();
      inbox.push(event_of(number));
      if (number == 1) {
        inbox.again(id);  // there is more
      }
    });
    id = inbox.add(signal.fd(), source);
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&] {
        Event event;
        EXPECT_EQ(inbox.receive(event, limit()), Received::kEvent);
        ++busy;
        for (const auto until = limit(); busy < 2 && Clock::now() < until;) {
          std::this_thread::yield();
        }
      });
    }
    std::this_thread::yield();
    signal.set();
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(reads, 2);
  }
}

TEST(Inbox, ABurstOfOneSourceWakesOtherThreads) {
  Inbox inbox;
  Signal signal;
  constexpr int kEvents = 4;
  const auto source = std::make_shared<FunctionSource>([&] {
    for (int i = 0; i < kEvents; ++i) {
      inbox.push(event_of(i));
    }
  });
  inbox.add(signal.fd(), source);
  std::atomic<int> busy{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kEvents; ++i) {
    threads.emplace_back([&] {
      Event event;
      ASSERT_EQ(inbox.receive(event, limit()), Received::kEvent);
      ++busy;
      // No other thread takes this one's event.
      for (const auto until = limit(); busy < kEvents && Clock::now() < until;) {
        std::this_thread::yield();
      }
    });
  }
  signal.set();
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(busy, kEvents);
}

TEST(Inbox, EachEventGoesToOneThread) {
  Inbox inbox;
  constexpr int kEvents = 2000;
  expect_each_event_on_one_thread(inbox, kEvents, [&] {
    for (int i = 0; i < kEvents; ++i) {
      inbox.push(event_of(i));
    }
  });
}

}  // namespace
}  // namespace rpc_backends::zeromq
