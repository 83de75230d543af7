// A shortage of memory: each allocation of C++ fails once. A call that nothing else would end still ends.
#include <gtest/gtest.h>

#include <future>
#include <new>
#include <string>
#include <vector>

#include "agent/calls.h"
#include "base/log.h"
#include "failing_new.h"
#include "rpc/futures.h"
#include "wire/pieces.h"

namespace rpc_backends {
namespace {

namespace rpc = torch::distributed::rpc;
using std::chrono::milliseconds;

// No passing test waits that long.
constexpr std::chrono::seconds kLimit{60};
constexpr int kPeer = 1;
constexpr int kCalls = 3;

FuturePtr new_future() {
  return c10::make_intrusive<rpc::JitFuture>(at::AnyClassType::get());
}

// Calls `end` with a new future while allocation 1 fails, then 2, until no allocation is left that could fail. Returns
// how many have failed.
template <typename End>
int failed_allocations(const End& end) {
  for (int number = 1;; ++number) {
    const FuturePtr future = new_future();
    bool called = false;
    future->addCallback([&called](rpc::JitFuture&) { called = true; });
    fail_allocation(number);
    end(future);
    if (fail_allocation(0) > 0) {
      return number - 1;
    }
    EXPECT_TRUE(future->completed()) << "allocation " << number;
    EXPECT_TRUE(called) << "allocation " << number;
  }
}

TEST(ShortageTest, AFutureGetsAnErrorWhenItsTextGetsNoMemory) {
  const std::string text(100, 'x');
  EXPECT_GE(failed_allocations([&](const FuturePtr& future) { fail(future, text); }), 1);
}

TEST(ShortageTest, AFutureGetsAnErrorWhenItsValueGetsNoMemory) {
  const auto work = [](const FuturePtr& future) {
    completing(future, [&] { future->markCompleted(c10::IValue(std::string(100, 'x')), {}); });
  };
  EXPECT_GE(failed_allocations(work), 2);
}

Calls::Call some_call(milliseconds timeout) {
  Calls::Call call;
  call.peer = kPeer;
  call.future = new_future();
  call.timeout = timeout;
  return call;
}

TEST(ShortageTest, CallsOfALostPeerAreTakenWithoutMemory) {
  Calls calls(1 << 20, [](const std::vector<Calls::Call>&) {}, [] { return false; });
  for (int i = 0; i < kCalls; ++i) {
    calls.add(calls.next_id(), some_call(milliseconds(i)), Clock::now(), false);
  }
  size_t taken = 0;
  fail_allocation(1);
  (void)error_in([&] { taken = calls.take_all(kPeer).size(); });
  EXPECT_EQ(fail_allocation(0), 1);
  EXPECT_EQ(taken, size_t{kCalls});
}

// Three calls time out at the same moment, and allocation `number` of the timeout thread fails then. Returns how many
// are reported.
int reported_late(int number) {
  std::promise<void> prepared, reported;
  int late = 0;
  Calls calls(
      1 << 20,
      [&](const std::vector<Calls::Call>& some) {
        fail_allocation(0);
        late += static_cast<int>(some.size());
        if (late == kCalls) {
          reported.set_value();
        }
      },
      [&] {
        fail_allocation(number);
        prepared.set_value();
        return false;
      });
  calls.ask_for_pulse();
  calls.start();
  prepared.get_future().wait();
  const auto started = Clock::now();
  for (int i = 0; i < kCalls; ++i) {
    calls.add(calls.next_id(), some_call(milliseconds(100)), started, false);
  }
  (void)reported.get_future().wait_for(kLimit);
  calls.stop();
  return late;
}

TEST(ShortageTest, AllCallsTimeOutWhenTheTimeoutThreadGetsNoMemory) {
  for (int number = 1; number <= kCalls; ++number) {
    EXPECT_EQ(reported_late(number), kCalls) << "allocation " << number;
  }
}

// A call whose message is unsent times out, and allocation `number` of the timeout thread fails then. Returns whether
// another call, which waits for its room, is added when the message is sent.
bool is_added_later(int number) {
  constexpr uint64_t kRoom = 10000;
  std::promise<void> prepared, reported;
  Calls calls(
      kRoom,
      [&](const std::vector<Calls::Call>&) {
        fail_allocation(0);
        reported.set_value();
      },
      [&] {
        fail_allocation(number);
        prepared.set_value();
        return false;
      });
  calls.ask_for_pulse();
  calls.start();
  prepared.get_future().wait();
  auto unsent = std::make_shared<int>();
  Calls::Call unsent_call = some_call(milliseconds(50));
  unsent_call.bytes = kRoom;
  unsent_call.unsent = unsent;
  calls.add(calls.next_id(), std::move(unsent_call), Clock::now(), false);
  (void)reported.get_future().wait_for(kLimit);
  unsent.reset();
  Calls::Call next = some_call(milliseconds(1000));
  next.bytes = kRoom;
  const bool is_added = calls.add(calls.next_id(), std::move(next), Clock::now(), true) != nullptr;
  calls.stop();
  return is_added;
}

TEST(ShortageTest, ACallThatTimesOutUnsentWithoutMemoryGivesItsRoomBack) {
  for (int number = 1; number <= 4; ++number) {
    EXPECT_TRUE(is_added_later(number)) << "allocation " << number;
  }
}

TEST(ShortageTest, AMessageInPiecesThatGetsNoMemoryMayBeAddedLater) {
  const ArrivingMessages::Key key{kPeer, FrameKind::kRequest, 1, 1};
  for (int number = 1;; ++number) {
    ArrivingMessages messages(1 << 20, 1 << 20);
    fail_allocation(number);
    (void)error_in([&] { (void)messages.find_or_add(key); });
    if (fail_allocation(0) > 0) {
      EXPECT_GE(number, 4) << "fewer allocations than its peer, its entry and itself";
      return;
    }
    EXPECT_EQ(messages.size(), 0U) << "allocation " << number;
    ASSERT_NE(messages.find_or_add(key), nullptr) << "allocation " << number;
    messages.clear();
  }
}

TEST(ShortageTest, EveryUnfinishedRequestIsReportedWhenItIsDropped) {
  const auto late = ArrivingMessages::Clock::now() + 2 * ArrivingMessages::kSilence;
  const auto is_awaited = [](const ArrivingMessages::Key&) { return true; };
  for (int number = 1;; ++number) {
    ArrivingMessages messages(1 << 20, 1 << 20);
    for (uint64_t call = 0; call < kCalls; ++call) {
      (void)messages.find_or_add({kPeer, FrameKind::kRequest, call, 1});
    }
    size_t reported = 0;
    const auto drop = [&] { reported += messages.drop_stale(is_awaited, late).size(); };
    fail_allocation(number);
    (void)error_in(drop);
    const bool has_failed = fail_allocation(0) == 0;
    drop();
    EXPECT_EQ(reported, size_t{kCalls}) << "allocation " << number;
    if (!has_failed) {
      return;
    }
  }
}

}  // namespace
}  // namespace rpc_backends
