// Who polls UCX, who wakes, and which thread gets which event. The source is not UCX.
#include "inbox.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "racing.h"

namespace rpc_backends::ucx {
namespace {

using std::chrono::milliseconds;

// Traffic that the test makes. Like UCX's, its descriptor signals new traffic once after arm().
class FakeSource : public Inbox::Source {
 public:
  bool progress() override {
    EXPECT_EQ(++polling_, 1) << "two threads poll";
    ++polls;
    const int taken = waiting_.exchange(0);
    if (taken > 0) {
      on_traffic(taken);
    }
    --polling_;
    return taken > 0;
  }

  bool arm() override {
    signal_.clear();
    armed_ = true;
    const bool is_silent = waiting_ == 0 && can_arm;
    ++arms;  // last: a test that has seen it makes traffic that this attempt does not see
    return is_silent;
  }

  bool is_copying() const override { return copies; }
  void on_ready(uint64_t id) override { ready = id; }
  int event_fd() const override { return signal_.fd(); }

  void arrive(int count = 1) {
    waiting_ += count;
    if (armed_.exchange(false)) {
      signal_.set();
    }
  }

  std::function<void(int)> on_traffic = [](int) {};
  std::atomic<int> polls{0}, arms{0};
  std::atomic<bool> can_arm{true}, copies{false};
  std::atomic<uint64_t> ready{0};

 private:
  Signal signal_;
  std::atomic<int> waiting_{0}, polling_{0};
  std::atomic<bool> armed_{false};
};

class InboxTest : public testing::Test {
 protected:
  InboxTest() {
    source.on_traffic = [this](int count) {
      for (int i = 0; i < count; ++i) {
        inbox.push(event_of(++arrived));
      }
    };
  }

  Received receive(Clock::duration time = std::chrono::seconds(60)) {
    return inbox.receive(event, Clock::now() + time);
  }

  FakeSource source;
  Counters counters;
  Inbox inbox{source, std::chrono::microseconds(10), counters};
  Event event;
  int arrived = 0;
};

TEST_F(InboxTest, AThreadThatWaitsPollsTheSource) {
  source.arrive();
  ASSERT_EQ(receive(), Received::kEvent);
  EXPECT_EQ(event.peer, 1);
  EXPECT_EQ(event.order, 1U);
}

TEST_F(InboxTest, AnEventDoesNotWaitForTheNextSegmentOfACopy) {
  source.can_arm = false;
  source.copies = true;
  source.arrive();
  ASSERT_EQ(receive(), Received::kEvent);
  EXPECT_EQ(source.polls, 1);
  source.copies = false;
  source.arrive();
  ASSERT_EQ(receive(), Received::kEvent);
  EXPECT_GT(source.polls, 2);  // it tried to arm the source
}

TEST_F(InboxTest, AThreadSleepsUntilTheDescriptorSignalsTraffic) {
  std::thread waiting([this] { EXPECT_EQ(receive(), Received::kEvent); });
  while (source.arms == 0) {
    std::this_thread::yield();
  }
  source.arrive();
  waiting.join();
  EXPECT_EQ(event.peer, 1);
}

TEST_F(InboxTest, ReceiveEndsAtItsDeadline) {
  EXPECT_EQ(receive(Clock::duration(0)), Received::kTimeout);
  EXPECT_EQ(receive(milliseconds(2)), Received::kTimeout);
}

TEST_F(InboxTest, ReceiveEndsAtItsDeadlineIfTheSourceCannotBeArmed) {
  source.can_arm = false;
  EXPECT_EQ(receive(milliseconds(5)), Received::kTimeout);
  source.can_arm = true;
  source.arrive();
  EXPECT_EQ(receive(), Received::kEvent);
}

TEST_F(InboxTest, ASourceWithTrafficItDoesNotSignalIsPolledAgain) {
  source.can_arm = false;
  std::thread waiting([this] { EXPECT_EQ(receive(), Received::kEvent); });
  while (source.arms < 40) {  // it pauses between attempts by now
    std::this_thread::yield();
  }
  source.arrive();
  waiting.join();
}

TEST_F(InboxTest, AnEventFromAnotherThreadWakesASleepingOne) {
  std::thread waiting([this] { EXPECT_EQ(receive(), Received::kEvent); });
  while (source.arms == 0) {
    std::this_thread::yield();
  }
  inbox.push(event_of(77));
  waiting.join();
  EXPECT_EQ(event.peer, 77);
}

TEST_F(InboxTest, AThreadThatTakesAnEventWakesAnotherOneForTheNext) {
  // The second event comes before the first thread wakes up, so it wakes no thread itself.
  constexpr int kRounds = 100;
  std::atomic<int> taken{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      for (int round = 1; round <= kRounds; ++round) {
        Event mine;
        ASSERT_EQ(inbox.receive(mine, limit()), Received::kEvent);
        ++taken;
        for (const auto until = Clock::now() + std::chrono::seconds(30); taken < 2 * round; std::this_thread::yield()) {
          ASSERT_LT(Clock::now(), until) << "the other thread sleeps";
        }
      }
    });
  }
  for (int round = 0; round < kRounds && !HasFailure(); ++round) {
    while (taken < 2 * round && !HasFailure()) {
      std::this_thread::yield();
    }
    std::this_thread::sleep_for(milliseconds(1));  // so that both sleep, in most rounds
    inbox.push(event_of(1));
    inbox.push(event_of(2));
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_F(InboxTest, NudgeMakesASleepingThreadPoll) {
  std::thread waiting([this] { EXPECT_EQ(receive(), Received::kEvent); });
  while (source.arms == 0) {
    std::this_thread::yield();
  }
  const int before = source.polls;
  inbox.nudge();
  while (source.polls == before) {
    std::this_thread::yield();
  }
  inbox.push(event_of(1));
  waiting.join();
}

TEST_F(InboxTest, ThreadsPollLongerAfterAWakeUpThatCameSoonOnly) {
  constexpr milliseconds kShortest{40};
  Inbox patient(source, kShortest, counters);
  source.on_traffic = [&](int) { patient.push(event_of(1)); };
  const auto wake_after = [&](Clock::duration silence) {
    const int before = source.arms;
    std::thread waiting([&] {
      Event taken;
      EXPECT_EQ(patient.receive(taken, limit()), Received::kEvent);
    });
    while (source.arms == before) {  // it polls
      std::this_thread::yield();
    }
    std::this_thread::sleep_for(silence);
    source.arrive();
    waiting.join();
  };
  EXPECT_EQ(patient.poll_time(), kShortest);
  for (const auto until = limit(); patient.poll_time() == kShortest && Clock::now() < until;) {
    patient.expect_traffic();
    wake_after({});
  }
  EXPECT_EQ(patient.poll_time(), 3 * kShortest);
  wake_after(3 * kShortest);
  EXPECT_EQ(patient.poll_time(), kShortest);
}

TEST_F(InboxTest, CloseEndsAllThreadsAndDropsEvents) {
  expect_close_to_end_all_threads(inbox);
}

TEST_F(InboxTest, CloseReleasesTheMemoryOfEvents) {
  expect_close_to_release_events(inbox);
}

TEST_F(InboxTest, AWatchedDescriptorIsHandledOnceUntilItIsWatchedAgain) {
  Signal signal;
  inbox.watch(signal.fd(), Inbox::kFirstId + 4);
  signal.set();
  EXPECT_EQ(receive(milliseconds(50)), Received::kTimeout);
  EXPECT_EQ(source.ready, Inbox::kFirstId + 4);
  source.ready = 0;
  EXPECT_EQ(receive(milliseconds(5)), Received::kTimeout);
  EXPECT_EQ(source.ready, 0U);
  inbox.watch_again(signal.fd(), Inbox::kFirstId + 5);
  EXPECT_EQ(receive(milliseconds(50)), Received::kTimeout);
  EXPECT_EQ(source.ready, Inbox::kFirstId + 5);
  inbox.unwatch(signal.fd());
}

TEST_F(InboxTest, AnotherThreadTakesOverWhileOneIsBlockedInAnEvent) {
  // Even if as many threads handle events as there are cores: they are seen to be blocked after a moment.
  const int threads_to_block = static_cast<int>(std::thread::hardware_concurrency()) + 1;
  std::atomic<int> blocked{0};
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < threads_to_block; ++i) {
    threads.emplace_back([&] {
      Event taken;
      EXPECT_EQ(inbox.receive(taken, limit()), Received::kEvent);
      ++blocked;
      while (!over) {
        std::this_thread::sleep_for(milliseconds(1));
      }
    });
  }
  for (int i = 0; i < threads_to_block; ++i) {
    source.arrive();
    for (const auto until = limit(); blocked <= i && Clock::now() < until;) {
      std::this_thread::yield();
    }
    ASSERT_GT(blocked, i);
  }
  over = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_F(InboxTest, AThreadThatMayBlockHandsOverAtOnce) {
  std::atomic<bool> has_taken{false}, over{false};
  std::thread first([&] {
    Event taken;
    EXPECT_EQ(inbox.receive(taken, limit()), Received::kEvent);
    inbox.may_block();
    has_taken = true;
    while (!over) {
      std::this_thread::yield();
    }
  });
  source.arrive();
  while (!has_taken) {
    std::this_thread::yield();
  }
  source.arrive();
  EXPECT_EQ(receive(), Received::kEvent);
  over = true;
  first.join();
}

TEST_F(InboxTest, EachEventGoesToOneThread) {
  constexpr int kEvents = 1000;
  expect_each_event_on_one_thread(inbox, kEvents, [this] {
    for (int i = 0; i < kEvents / 4; ++i) {
      source.arrive(3);
      inbox.push(event_of(-1 - i));
    }
  });
}

}  // namespace
}  // namespace rpc_backends::ucx
