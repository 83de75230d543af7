// What transports in C++ share: the gate, the callback thread, the releaser, the queue of events, memory, hashes.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <future>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "parts.h"
#include "rpc_backends_agents/blocks.h"
#include "rpc_backends_agents/callback_thread.h"
#include "rpc_backends_agents/fd.h"
#include "rpc_backends_agents/gate.h"
#include "rpc_backends_agents/releaser.h"
#include "rpc_backends_agents/siphash.h"

namespace rpc_backends {
namespace {

// No passing test waits that long.
constexpr std::chrono::seconds kLimit{60};

template <typename Future>
bool is_ready(Future&& future) {
  return future.wait_for(kLimit) == std::future_status::ready;
}

TEST(Gate, ClosingWaitsForCallsInProgressOnly) {
  Gate gate;
  auto inside = std::make_unique<Gate::Pass>(gate);
  EXPECT_TRUE(*inside);
  gate.close();
  EXPECT_TRUE(gate.is_closed());
  EXPECT_FALSE(Gate::Pass(gate));
  std::promise<void> emptied;
  std::thread waiting([&] {
    gate.wait_until_empty();
    emptied.set_value();
  });
  auto future = emptied.get_future();
  EXPECT_EQ(future.wait_for(std::chrono::milliseconds(1)), std::future_status::timeout);
  inside.reset();
  EXPECT_TRUE(is_ready(future));
  waiting.join();
}

TEST(Gate, AdmitsNoCallAfterItsCloseReturned) {
  Gate gate;
  std::atomic<bool> is_empty{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (;;) {
        const Gate::Pass pass(gate);
        if (!pass) {
          return;
        }
        EXPECT_FALSE(is_empty);
      }
    });
  }
  gate.close();
  gate.wait_until_empty();
  is_empty = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(CallbackThread, AnswersLookupsInOrder) {
  std::promise<std::vector<std::optional<int>>> all;
  std::vector<std::optional<int>> answers;
  CallbackThread thread(
      "test", [](const std::string& key, double) { return key == "one" ? std::optional<int>(1) : std::nullopt; }, {});
  ASSERT_TRUE(thread.can_look_up());
  EXPECT_TRUE(thread.look_up("one", [&](std::optional<int> worker) { answers.push_back(worker); }));
  EXPECT_TRUE(thread.look_up("none", [&](std::optional<int> worker) {
    answers.push_back(worker);
    all.set_value(answers);
  }));
  EXPECT_EQ(all.get_future().get(), (std::vector<std::optional<int>>{1, std::nullopt}));
}

TEST(CallbackThread, WithoutACallbackLooksNothingUp) {
  CallbackThread thread("test", {}, {});
  EXPECT_FALSE(thread.can_look_up());
  EXPECT_FALSE(thread.look_up("key", [](std::optional<int>) { FAIL(); }));
  thread.report("nobody logs this");
}

TEST(CallbackThread, BoundsItsQueueWhileACallbackBlocks) {
  std::promise<void> started, go_on;
  CallbackThread thread("test",
                        [&](const std::string& key, double) {
                          if (key == "first") {
                            started.set_value();
                            go_on.get_future().wait();
                          }
                          return std::nullopt;
                        },
                        {});
  ASSERT_TRUE(thread.look_up("first", [](std::optional<int>) {}));
  ASSERT_TRUE(is_ready(started.get_future()));
  int accepted = 0;
  while (accepted < 5000 && thread.look_up("more", [](std::optional<int>) {})) {
    ++accepted;
  }
  EXPECT_EQ(accepted, 1000);
  go_on.set_value();
}

TEST(CallbackThread, GoesOnWhenACallbackRunsOutOfMemory) {
  std::promise<std::optional<int>> unknown, known;
  CallbackThread thread(
      "test",
      [](const std::string& key, double) {
        if (key == "short") {
          throw std::bad_alloc();
        }
        return std::optional<int>(1);
      },
      [](const std::string&) { throw std::bad_alloc(); });
  thread.report("a line");
  EXPECT_TRUE(thread.look_up("short", [&](std::optional<int> worker) { unknown.set_value(worker); }));
  EXPECT_TRUE(thread.look_up("key", [](std::optional<int>) { throw std::bad_alloc(); }));
  EXPECT_TRUE(thread.look_up("key", [&](std::optional<int> worker) { known.set_value(worker); }));
  EXPECT_EQ(unknown.get_future().get(), std::nullopt);
  EXPECT_EQ(known.get_future().get(), 1);
}

TEST(CallbackThread, GivesNoAnswerAfterStop) {
  std::promise<void> stopped, ended;
  std::atomic<bool> answered{false};
  {
    CallbackThread* running = nullptr;
    // Released with the callback, when the thread has ended.
    std::shared_ptr<void> life(&ended, [](void* promise) { static_cast<std::promise<void>*>(promise)->set_value(); });
    CallbackThread thread("test",
                          [&running, &stopped, life = std::move(life)](const std::string&, double) {
                            running->stop();
                            stopped.set_value();
                            return std::optional<int>(1);
                          },
                          {});
    running = &thread;
    ASSERT_TRUE(thread.look_up("key", [&](std::optional<int>) { answered = true; }));
    ASSERT_TRUE(is_ready(stopped.get_future()));
  }
  ASSERT_TRUE(is_ready(ended.get_future()));
  EXPECT_FALSE(answered);
}

struct ReportsThread {
  ~ReportsThread() { on.set_value(std::this_thread::get_id()); }
  std::promise<std::thread::id> on;
};

TEST(Releaser, ReleasesOwnersOfLargePartsOnItsThread) {
  Releaser releaser("test", 10);
  auto large = std::make_shared<ReportsThread>(), small = std::make_shared<ReportsThread>();
  auto large_on = large->on.get_future(), small_on = small->on.get_future();
  Parts parts{{nullptr, 11, std::move(large)}, {nullptr, 10, std::move(small)}};
  releaser.hold(parts);
  parts.clear();
  ASSERT_TRUE(is_ready(large_on));
  EXPECT_NE(large_on.get(), std::this_thread::get_id());
  EXPECT_EQ(small_on.get(), std::this_thread::get_id());
}

TEST(Releaser, ReleasesEverythingQueuedBeforeItStops) {
  auto releaser = std::make_unique<Releaser>("test", 0);
  std::atomic<int> released{0};
  constexpr int kParts = 100;
  Parts parts;
  for (int i = 0; i < kParts; ++i) {
    parts.push_back({nullptr, 1, std::shared_ptr<void>(&released, [&](void*) { ++released; })});
  }
  releaser->hold(parts);
  parts.clear();
  releaser.reset();
  EXPECT_EQ(released, kParts);
}

TEST(Releaser, OwnersDroppedAfterItsEndAreReleasedAtOnce) {
  auto owner = std::make_shared<ReportsThread>();
  auto on = owner->on.get_future();
  Parts parts{{nullptr, 1, std::move(owner)}};
  Releaser("test", 0).hold(parts);
  parts.clear();
  EXPECT_EQ(on.get(), std::this_thread::get_id());
}

TEST(EventQueue, NumbersEventsWithoutGapsInTheirOrder) {
  EventQueue queue;
  for (int peer : {7, 8, 9}) {
    Event event;
    event.peer = peer;
    queue.push(std::move(event));
  }
  for (const auto& [peer, number] : {std::pair{7, 1}, {8, 2}, {9, 3}}) {
    Event event;
    ASSERT_TRUE(queue.pop(event));
    EXPECT_EQ(event.peer, peer);
    EXPECT_EQ(event.order, static_cast<uint64_t>(number));
  }
}

TEST(EventQueue, PopEndsAtItsDeadline) {
  EventQueue queue;
  Event event;
  EXPECT_EQ(queue.pop(event, EventQueue::Clock::now() + std::chrono::milliseconds(2)), Received::kTimeout);
  queue.push({});
  EXPECT_EQ(queue.pop(event, EventQueue::Clock::now()), Received::kEvent);
  queue.close();
  EXPECT_EQ(queue.pop(event, EventQueue::Clock::now()), Received::kClosed);
}

TEST(EventQueue, CloseEndsWaitingThreadsAndDropsEvents) {
  EventQueue queue;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      Event event;
      EXPECT_FALSE(queue.pop(event));
    });
  }
  queue.close();
  for (std::thread& thread : threads) {
    thread.join();
  }
  queue.push({});
  Event event;
  EXPECT_FALSE(queue.pop(event));
}

TEST(Blocks, AreAlignedAndWritableToTheirEnd) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{17}, blocks::kLeastKept - 1, blocks::kLeastKept,
                            blocks::kLargePage / 2, blocks::kLargePage + 1}) {
    const Part part = take_block(size);
    EXPECT_EQ(part.size, size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(part.data) % 16, 0U);
    std::memset(const_cast<void*>(part.data), 'b', size);
  }
}

TEST(Blocks, AreReusedForASimilarSizeOnly) {
  constexpr size_t kSize = size_t{3} << 20;
  const void* const first = take_block(kSize).data;
  EXPECT_EQ(take_block(kSize - 4096).data, first);
  EXPECT_NE(take_block(kSize / 8).data, first);
}

// Whether the kernel was asked for huge pages at this address.
bool asks_for_huge_pages(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  bool is_inside = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      is_inside = begin <= wanted && wanted < end;
    } else if (is_inside && line.starts_with("VmFlags:")) {
      return (line + " ").find(" hg ") != std::string::npos;
    }
  }
  return false;
}

TEST(Blocks, GetHugePagesWhenTheyAreLargeAndUsedOften) {
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) {
    GTEST_SKIP() << "this kernel has no huge pages for anonymous memory";
  }
  constexpr size_t kSize = blocks::kMostHuge + (size_t{3} << 20) + 1;
  for (int used = 0; used < blocks::kOften; ++used) {
    EXPECT_FALSE(asks_for_huge_pages(take_block(kSize, true).data)) << used;
  }
  const Part huge = take_block(kSize, true);
  EXPECT_TRUE(asks_for_huge_pages(huge.data));
  std::memset(const_cast<void*>(huge.data), 'b', kSize);
}

TEST(Blocks, GetHugePagesIfTheirSizeWasUsedOftenAndNoneWasKept) {
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) {
    GTEST_SKIP() << "this kernel has no huge pages for anonymous memory";
  }
  constexpr size_t kSize = blocks::kMostHuge + (size_t{5} << 20);
  for (int used = 0; used < blocks::kOften; ++used) {
    EXPECT_FALSE(asks_for_huge_pages(take_block(kSize, true).data)) << used;
    (void)take_block(blocks::kKept);  // in the place of all others
  }
  EXPECT_TRUE(asks_for_huge_pages(take_block(kSize, true).data));
}

TEST(Blocks, KeepSmallPagesForAnEngineThatDoesNotGainByHugeOnes) {
  constexpr size_t kSize = blocks::kMostHuge * 3;
  const void* const first = take_block(kSize).data;
  for (int used = 0; used <= blocks::kOften; ++used) {
    EXPECT_EQ(take_block(kSize).data, first);
  }
}

TEST(Blocks, KeepTheirHugePages) {
  constexpr size_t kSize = blocks::kMostHuge * 2;
  const void* last = nullptr;
  for (int used = 0; used <= blocks::kOften; ++used) {
    last = take_block(kSize, true).data;
  }
  for (int used = 0; used <= blocks::kOften; ++used) {
    EXPECT_EQ(take_block(kSize, true).data, last);
  }
}

TEST(Blocks, ThrowIfNoMemoryHasThatSize) {
  EXPECT_THROW(take_block(SIZE_MAX), std::bad_alloc);
  EXPECT_THROW(take_block(SIZE_MAX / 2), std::bad_alloc);
}

TEST(Fd, ThrowsWithTheReasonIfThereIsNoDescriptor) {
  errno = EMFILE;
  try {
    const Fd fd(-1);
    FAIL();
  } catch (const TransportError& error) {
    EXPECT_STREQ(error.what(), "the transport cannot open a file: Too many open files");
  }
}

TEST(Epoll, ReportsAOneShotDescriptorOnceUntilItIsRearmed) {
  Epoll epoll;
  Signal signal;
  epoll.add(signal.fd(), EPOLLIN | EPOLLONESHOT, 5);
  EXPECT_EQ(epoll.wait(0), 0U);
  signal.set();
  EXPECT_EQ(epoll.wait(0), 5U);
  EXPECT_EQ(epoll.wait(0), 0U);
  epoll.rearm(signal.fd(), EPOLLIN | EPOLLONESHOT, 6);
  EXPECT_EQ(epoll.wait(0), 6U);
  epoll.remove(signal.fd());
  epoll.rearm(signal.fd(), EPOLLIN, 7);
  EXPECT_EQ(epoll.wait(0), 0U);
}

TEST(SipHash, HasTheValueOfTheReferenceImplementation) {
  // Of the paper: the key 00 01 02 ... 0f, and the message 00 01 02 ... 0e.
  SipHash hash(0x0706050403020100, 0x0f0e0d0c0b0a0908);
  const unsigned char message[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
  hash.add(message, 4);  // the value does not depend on how the message is split
  hash.add(message + 4, sizeof message - 4);
  EXPECT_EQ(hash.finish(), 0xa129ca6149be45e5);
}

TEST(SipHash, DiffersForSequencesWithTheSameBytes) {
  const auto hash = [](const std::vector<std::string>& texts) {
    SipHash made(1, 2);
    for (const std::string& text : texts) {
      made.add(text);
    }
    return made.finish();
  };
  EXPECT_NE(hash({"ab", "c"}), hash({"a", "bc"}));
}

}  // namespace
}  // namespace rpc_backends
