#include "agent/calls.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <thread>
#include <vector>

namespace rpc_backends {
namespace {

namespace rpc = torch::distributed::rpc;
using std::chrono::milliseconds;

constexpr milliseconds kShort{1}, kLong{3600 * 1000};
// No passing test waits that long.
constexpr std::chrono::seconds kLimit{60};
constexpr uint64_t kRoom = 10000;

Calls::Call call_to(int peer, milliseconds timeout = kLong, uint64_t bytes = 1) {
  Calls::Call call;
  call.peer = peer;
  call.future = c10::make_intrusive<rpc::JitFuture>(at::AnyClassType::get());
  call.bytes = bytes;
  call.timeout = timeout;
  return call;
}

// Calls whose timeouts the test waits for.
class CallsTest : public testing::Test {
 protected:
  CallsTest() { calls.start(); }
  ~CallsTest() override { calls.stop(); }

  uint64_t add(Calls::Call call) {
    const uint64_t id = calls.next_id();
    EXPECT_TRUE(calls.add(id, std::move(call), Clock::now(), false));
    return id;
  }

  // Waits until this many calls have timed out.
  void wait_for_late(size_t count) {
    std::unique_lock<std::mutex> lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, kLimit, [&] { return late.size() >= count; }));
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Calls::Call> late;
  std::atomic<int> pulses{0};
  std::promise<void> pulsed;

  Calls calls{kRoom,
              [this](std::vector<Calls::Call> some) {
                const std::lock_guard<std::mutex> lock(mutex);
                for (Calls::Call& call : some) {
                  late.push_back(std::move(call));
                }
                changed.notify_all();
              },
              [this] {
                if (++pulses == 3) {
                  pulsed.set_value();
                }
                return pulses < 3;
              }};
};

TEST_F(CallsTest, TheAnswerOfThePeerTakesTheCall) {
  Calls::Call call = call_to(1);
  const FuturePtr future = call.future;
  const uint64_t id = add(std::move(call));
  EXPECT_TRUE(calls.waits(id, 1));
  const std::optional<Calls::Call> taken = calls.take(id, 1);
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->future, future);
  EXPECT_FALSE(calls.waits(id, 1));
  EXPECT_EQ(calls.waiting(), 0U);
}

TEST_F(CallsTest, AnotherPeerCannotAnswerTheCall) {
  const uint64_t id = add(call_to(1));
  EXPECT_FALSE(calls.waits(id, 2));
  EXPECT_FALSE(calls.take(id, 2));
  EXPECT_EQ(calls.late_answers(), 1U);
  EXPECT_TRUE(calls.take(id, 1));
}

TEST_F(CallsTest, ASecondAnswerIsLate) {
  const uint64_t id = add(call_to(1));
  EXPECT_TRUE(calls.take(id, 1));
  EXPECT_FALSE(calls.take(id, 1));
  EXPECT_EQ(calls.late_answers(), 1U);
}

TEST_F(CallsTest, ACallEndsAtItsTimeout) {
  const uint64_t id = add(call_to(1, kShort));
  wait_for_late(1);
  EXPECT_EQ(late[0].error, "");
  EXPECT_EQ(calls.timeouts(), 1U);
  EXPECT_FALSE(calls.take(id, 1));
}

TEST_F(CallsTest, AnEarlierTimeoutOvertakesALaterOne) {
  add(call_to(1));
  add(call_to(2, kShort));
  wait_for_late(1);
  EXPECT_EQ(late[0].peer, 2);
  EXPECT_EQ(calls.waiting(), 1U);
}

TEST_F(CallsTest, ACallWithoutATimeoutStays) {
  add(call_to(1, milliseconds(0)));
  add(call_to(2, kShort));
  wait_for_late(1);
  EXPECT_EQ(late[0].peer, 2);
  EXPECT_EQ(calls.take_all(1).size(), 1U);
}

TEST_F(CallsTest, TheLongestTimeoutDoesNotOverflow) {
  add(call_to(1, milliseconds::max()));
  add(call_to(2, kShort));
  wait_for_late(1);
  EXPECT_EQ(late[0].peer, 2);
}

TEST_F(CallsTest, AFailedCallEndsWithItsErrorAndIsNoTimeout) {
  const uint64_t id = add(call_to(1));
  calls.fail_after(kShort, id, "the reason");
  wait_for_late(1);
  EXPECT_EQ(late[0].error, "the reason");
  EXPECT_EQ(calls.timeouts(), 0U);
}

TEST_F(CallsTest, AFailureThatComesLaterTakesThePlaceOfTheTimeout) {
  const uint64_t id = add(call_to(1, milliseconds(1000)));
  calls.fail_after(kLong, id, "a failure");
  add(call_to(2, milliseconds(1000)));  // its timeout is later than that of the first call would have been
  wait_for_late(1);
  EXPECT_EQ(late[0].peer, 2);
  EXPECT_TRUE(calls.take(id, 1));
}

TEST_F(CallsTest, AnAnswerBeforeTheFailureWins) {
  const uint64_t id = add(call_to(1));
  calls.fail_after(kLong, id, "the reason");
  EXPECT_TRUE(calls.take(id, 1));
  calls.fail_after(kShort, id, "of a call that has ended");
  add(call_to(2, kShort));
  wait_for_late(1);
  EXPECT_EQ(late.size(), 1U);
  EXPECT_EQ(late[0].peer, 2);
}

TEST_F(CallsTest, APeerTakesItsOwnCallsWithIt) {
  add(call_to(1));
  const uint64_t call_to_2 = add(call_to(2));
  add(call_to(1));
  EXPECT_EQ(calls.take_all(1).size(), 2U);
  EXPECT_EQ(calls.unanswered_bytes(), 1 + Calls::kCallBytes);
  EXPECT_TRUE(calls.take(call_to_2, 2));
  add(call_to(3));
  EXPECT_EQ(calls.take_all().size(), 1U);
  EXPECT_EQ(calls.unanswered_bytes(), 0U);
}

TEST_F(CallsTest, ALostConnectionTakesOnlyTheCallsBeforeTheNewOne) {
  const uint64_t older = add(call_to(1));
  const uint64_t other = add(call_to(2));
  const uint64_t newer = add(call_to(1, kLong, 500));
  const Calls::Taken taken = calls.take_all(1, newer);
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(taken.begin()->first, older);
  EXPECT_TRUE(calls.take(other, 2));
  EXPECT_EQ(calls.unanswered_bytes(), 500 + Calls::kCallBytes);
  EXPECT_TRUE(calls.take(newer, 1));
  EXPECT_EQ(calls.unanswered_bytes(), 0U);
}

TEST_F(CallsTest, UnansweredBytesIncludeTheCallItself) {
  const uint64_t id = add(call_to(1, kLong, 500));
  EXPECT_EQ(calls.unanswered_bytes(), 500 + Calls::kCallBytes);
  calls.take(id, 1);
  EXPECT_EQ(calls.unanswered_bytes(), 0U);
}

TEST_F(CallsTest, ACallWaitsForRoomUntilAnAnswer) {
  const uint64_t first = add(call_to(1, kLong, kRoom));
  std::promise<FuturePtr> added;
  std::thread waiting(
      [&] { added.set_value(calls.add(calls.next_id(), call_to(1, kLong, kRoom), Clock::now(), true)); });
  auto future = added.get_future();
  EXPECT_EQ(future.wait_for(milliseconds(5)), std::future_status::timeout);
  EXPECT_TRUE(calls.take(first, 1));
  ASSERT_EQ(future.wait_for(kLimit), std::future_status::ready);
  EXPECT_TRUE(future.get());
  waiting.join();
}

TEST_F(CallsTest, ACallLargerThanTheRoomWaitsForTheLastAnswer) {
  const uint64_t first = add(call_to(1, kLong, 100));
  std::promise<FuturePtr> added;
  std::thread waiting(
      [&] { added.set_value(calls.add(calls.next_id(), call_to(1, kLong, 10 * kRoom), Clock::now(), true)); });
  auto future = added.get_future();
  EXPECT_EQ(future.wait_for(milliseconds(20)), std::future_status::timeout);
  EXPECT_TRUE(calls.take(first, 1));
  const bool is_added = future.wait_for(kLimit) == std::future_status::ready;
  EXPECT_TRUE(is_added);
  calls.stop();  // ends the wait if nothing else does
  waiting.join();
}

TEST_F(CallsTest, ACallFitsIfItFillsTheRoomExactly) {
  add(call_to(1, kLong, 1000));
  const uint64_t rest = kRoom - 1000 - 2 * Calls::kCallBytes;
  EXPECT_FALSE(calls.add(calls.next_id(), call_to(1, kShort, rest + 1), Clock::now(), true));
  EXPECT_TRUE(calls.add(calls.next_id(), call_to(1, kLong, rest), Clock::now(), true));
}

TEST_F(CallsTest, ACallToAnotherPeerDoesNotWait) {
  add(call_to(1, kLong, kRoom));
  EXPECT_TRUE(calls.add(calls.next_id(), call_to(2, kLong, kRoom), Clock::now(), true));
}

TEST_F(CallsTest, ACallLargerThanTheRoomGoesAlone) {
  EXPECT_TRUE(calls.add(calls.next_id(), call_to(1, kLong, 10 * kRoom), Clock::now(), true));
}

TEST_F(CallsTest, ACallThatWaitsForRoomTooLongTimesOut) {
  add(call_to(1, kLong, kRoom));
  EXPECT_FALSE(calls.add(calls.next_id(), call_to(1, milliseconds(20), kRoom), Clock::now(), true));
  EXPECT_EQ(calls.timeouts(), 1U);
  EXPECT_EQ(calls.waiting(), 1U);
}

TEST_F(CallsTest, ATimedOutCallKeepsItsRoomUntilItsMessageIsSent) {
  auto unsent = std::make_shared<int>();
  Calls::Call call = call_to(1, kShort, kRoom);
  call.unsent = unsent;
  add(std::move(call));
  wait_for_late(1);
  EXPECT_EQ(calls.unanswered_bytes(), kRoom + Calls::kCallBytes);
  EXPECT_FALSE(calls.add(calls.next_id(), call_to(1, milliseconds(20), kRoom), Clock::now(), true));
  unsent.reset();
  EXPECT_TRUE(calls.add(calls.next_id(), call_to(1, kLong, kRoom), Clock::now(), true));
  EXPECT_EQ(calls.unanswered_bytes(), kRoom + Calls::kCallBytes);
}

TEST_F(CallsTest, AWaitingCallSeesThatATimedOutCallIsSentLater) {
  auto unsent = std::make_shared<int>();
  Calls::Call call = call_to(1, milliseconds(50), kRoom);
  call.unsent = unsent;
  add(std::move(call));
  std::promise<FuturePtr> added;
  std::thread waiting(
      [&] { added.set_value(calls.add(calls.next_id(), call_to(1, kLong, kRoom), Clock::now(), true)); });
  auto future = added.get_future();
  wait_for_late(1);
  EXPECT_EQ(future.wait_for(milliseconds(20)), std::future_status::timeout);
  unsent.reset();
  EXPECT_EQ(future.wait_for(kLimit), std::future_status::ready);
  calls.stop();  // ends the wait if nothing else does
  waiting.join();
}

TEST_F(CallsTest, ALateAnswerGivesTheRoomBack) {
  const auto unsent = std::make_shared<int>();
  Calls::Call call = call_to(1, kShort, kRoom);
  call.unsent = unsent;
  const uint64_t id = add(std::move(call));
  wait_for_late(1);
  EXPECT_FALSE(calls.take(id, 1));
  EXPECT_EQ(calls.unanswered_bytes(), 0U);
}

TEST_F(CallsTest, ATimedOutCallThatWasSentLeavesNoBytes) {
  add(call_to(1, kShort, kRoom));
  wait_for_late(1);
  EXPECT_EQ(calls.unanswered_bytes(), 0U);
}

TEST_F(CallsTest, ThePulseRepeatsUntilItIsNotNeeded) {
  calls.ask_for_pulse();
  ASSERT_EQ(pulsed.get_future().wait_for(kLimit), std::future_status::ready);
  add(call_to(1, kShort));
  wait_for_late(1);
  EXPECT_EQ(pulses, 3);
}

TEST(Pulse, RepeatsAfterAnException) {
  std::promise<void> repeated;
  int pulses = 0;
  Calls calls(
      kRoom, [](const std::vector<Calls::Call>&) {},
      [&] {
        if (++pulses == 1) {
          throw std::bad_alloc();
        }
        repeated.set_value();
        return false;
      });
  calls.start();
  calls.ask_for_pulse();
  EXPECT_EQ(repeated.get_future().wait_for(kLimit), std::future_status::ready);
  calls.stop();
}

TEST_F(CallsTest, StopEndsTheWaitForRoomAndKeepsTheCalls) {
  add(call_to(1, kLong, kRoom));
  std::thread waiting([&] { EXPECT_TRUE(calls.add(calls.next_id(), call_to(1, kLong, kRoom), Clock::now(), true)); });
  calls.stop();
  waiting.join();
  EXPECT_EQ(calls.waiting(), 2U);
}

TEST_F(CallsTest, EachCallEndsOnceUnderManyThreads) {
  constexpr int kThreads = 4, kCalls = 500;
  std::atomic<size_t> answered{0};
  std::vector<std::thread> threads;
  for (int peer = 0; peer < kThreads; ++peer) {
    threads.emplace_back([&, peer] {
      for (int i = 0; i < kCalls; ++i) {
        const uint64_t id = add(call_to(peer, i % 2 == 0 ? kShort : kLong));
        answered += calls.take(id, peer) ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  wait_for_late(kThreads * kCalls - answered);
  EXPECT_EQ(late.size() + answered, static_cast<size_t>(kThreads * kCalls));
  EXPECT_EQ(calls.waiting(), 0U);
  EXPECT_EQ(calls.unanswered_bytes(), 0U);
}

TEST(Futures, AnExceptionOfACallbackGoesNoFurther) {
  const auto future = c10::make_intrusive<rpc::JitFuture>(at::IntType::get());
  bool has_run = false;
  future->addCallback([&](rpc::JitFuture&) {
    has_run = true;
    throw std::runtime_error("on purpose");
  });
  complete(future, 7, {});
  EXPECT_TRUE(has_run);
  EXPECT_EQ(future->constValue().toInt(), 7);
}

TEST(Futures, ATimeoutHasTorchsTextAndItsMilliseconds) {
  const auto future = c10::make_intrusive<rpc::JitFuture>(at::IntType::get());
  fail(future, timeout_text(milliseconds(1500)));
  ASSERT_TRUE(future->hasError());
  EXPECT_NE(future->tryRetrieveErrorMessage().find("1500"), std::string::npos);
}

}  // namespace
}  // namespace rpc_backends
