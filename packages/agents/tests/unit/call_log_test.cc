#include "record/call_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace rpc_backends {
namespace {

namespace rpc = torch::distributed::rpc;
using Clock = std::chrono::steady_clock;

bool has(const std::vector<RecordedCall>& calls, uint64_t number) {
  return std::any_of(calls.begin(), calls.end(), [&](const auto& call) { return call.number == number; });
}

TEST(CallLogTest, ACallThatEndsDuringALookIsShownOnce) {
  constexpr uint64_t kCalls = 300000;
  CallLog log(16);
  const rpc::WorkerInfo callee("worker1", int64_t{1});
  const auto request =
      c10::make_intrusive<rpc::Message>(std::vector<char>(8), std::vector<at::Tensor>(), rpc::MessageType::SCRIPT_CALL);
  std::atomic<CallLog::Place*> ends{nullptr};
  std::atomic<bool> is_over{false};
  std::thread ending([&] {
    while (!is_over) {
      if (CallLog::Place* const place = ends.exchange(nullptr)) {
        log.failed(place, "it failed");
      }
    }
  });
  uint64_t nowhere = 0, twice = 0;
  for (uint64_t number = 1; number <= kCalls; ++number) {
    ends = log.begin_outgoing(callee, *request, std::chrono::milliseconds(1));
    // The look begins up to 2 us later, at each moment of the end.
    const auto begin = Clock::now() + std::chrono::nanoseconds(number % 200 * 10);
    while (Clock::now() < begin) {
    }
    const CallLog::Look look = log.look();
    nowhere += !has(look.in_flight, number) && !has(look.recent, number) ? 1 : 0;
    twice += has(look.in_flight, number) && has(look.recent, number) ? 1 : 0;
    while (ends != nullptr || !log.in_flight().empty()) {
      std::this_thread::yield();
    }
  }
  is_over = true;
  ending.join();
  EXPECT_EQ(nowhere, 0U);
  EXPECT_EQ(twice, 0U);
}

}  // namespace
}  // namespace rpc_backends
