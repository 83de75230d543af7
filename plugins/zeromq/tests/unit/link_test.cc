// The connections of a link: large messages take the lanes, and small ones pass them.
#include "link.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "failing_new.h"
#include "parts.h"
#include "socket_pair.h"
#include "stream.h"

namespace rpc_backends::zeromq {
namespace {

constexpr uint64_t kMaxMessage = uint64_t{64} << 20;
// More than a socket takes.
constexpr size_t kLargeSize = size_t{8} << 20;

Settings some_settings() {
  Settings settings;
  settings.max_message = kMaxMessage;
  settings.heartbeat = 3600;
  return settings;
}

Clock::time_point limit() {
  return Clock::now() + std::chrono::seconds(60);  // no passing test waits that long
}

// One end of a link.
struct End {
  std::shared_ptr<Stream> stream(std::unique_ptr<Fd> fd, bool is_lane) {
    const Stream::Services services{settings, inbox, loop, writer, releaser, counters, nullptr};
    streams.push_back(std::make_shared<Stream>(
        services, 1, std::make_unique<Channel>(std::move(fd)), [this](const std::string&) { has_ended = true; }, link,
        is_lane));
    return streams.back();
  }

  void start(size_t number) {
    streams[number]->start();
    link->add(streams[number], number > 0);
  }

  Parts next() {
    Event event;
    EXPECT_EQ(inbox.receive(event, limit()), Received::kEvent);
    return std::move(event.parts);
  }

  Settings settings = some_settings();
  Counters counters;
  Inbox inbox;
  EventLoop loop{"test-events"}, writer{"test-writes"};
  Releaser releaser{"test-release", 0};
  int large = 0;
  std::atomic<bool> has_ended{false};
  std::shared_ptr<Link> link = std::make_shared<Link>(kMaxMessage, [this] { ++large; });
  std::vector<std::shared_ptr<Stream>> streams;  // the first connection, then the lanes
};

class LinkTest : public testing::Test {
 protected:
  LinkTest() { connect(); }

  ~LinkTest() override {
    for (End* end : {&end1, &end2}) {
      for (const auto& stream : end->streams) {
        stream->close(Clock::now());
      }
    }
  }

  void connect() {
    auto [here, there] = socket_pair();
    const bool is_lane = !end1.streams.empty();
    end1.stream(std::move(here), is_lane);
    end2.stream(std::move(there), is_lane);
  }

  void start(size_t number) {
    end1.start(number);
    end2.start(number);
  }

  End end1, end2;
};

TEST_F(LinkTest, SmallMessagesPassALargeOneWhoseLaneIsNotRead) {
  connect();
  start(0);
  end1.start(1);
  ASSERT_TRUE(end1.streams[0]->send(parts_with({std::string(kLargeSize, 'x')})));
  for (const char* text : {"first", "second", "third"}) {
    ASSERT_TRUE(end1.streams[0]->send(parts_with({text})));
    EXPECT_EQ(bytes_in(end2.next()[0]), text);
  }
  end2.start(1);
  EXPECT_EQ(end2.next()[0].size, kLargeSize);
}

TEST_F(LinkTest, WithoutALaneSmallMessagesGoBetweenThePieces) {
  start(0);
  ASSERT_TRUE(end1.streams[0]->send(parts_with({std::string(kMaxMessage, 'x')})));
  ASSERT_TRUE(end1.streams[0]->send(parts_with({"small"})));
  EXPECT_EQ(bytes_in(end2.next()[0]), "small");
  EXPECT_EQ(end2.next()[0].size, kMaxMessage);
  EXPECT_EQ(end1.counters.bulk_pieces, 0U);
}

TEST_F(LinkTest, ALargeMessageUsesAllLanes) {
  connect();
  connect();
  start(0);
  end1.start(1);
  end1.start(2);
  end2.start(2);
  // The first lane takes what its socket takes, and the second one the rest.
  ASSERT_TRUE(end1.streams[0]->send(parts_with({"head", std::string(kMaxMessage - 4, 'x')})));
  Parts parts;
  std::thread reads([&] { parts = end2.next(); });
  end1.link->wait_until_taken(limit());
  EXPECT_TRUE(end1.link->is_empty());
  end2.start(1);
  reads.join();
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(bytes_in(parts[0]), "head");
  EXPECT_EQ(bytes_in(parts[1]), std::string(kMaxMessage - 4, 'x'));
}

TEST_F(LinkTest, BothSidesLearnOnceThatThereAreLargeMessages) {
  start(0);
  ASSERT_TRUE(end1.streams[0]->send(parts_with({"small"})));
  end2.next();
  EXPECT_EQ(end1.large + end2.large, 0);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(end1.streams[0]->send(parts_with({std::string(kLargeSize, 'x')})));
    end2.next();
  }
  EXPECT_EQ(end1.large, 1);
  EXPECT_EQ(end2.large, 1);
}

TEST_F(LinkTest, ALaneThatComesLaterTakesTheRest) {
  connect();
  end1.start(0);
  ASSERT_TRUE(end1.streams[0]->send(parts_with({std::string(kMaxMessage, 'x')})));
  end1.start(1);
  end2.start(1);
  std::thread reads([&] { EXPECT_EQ(end2.next()[0].size, kMaxMessage); });
  end1.link->wait_until_taken(limit());
  EXPECT_GT(end1.counters.bulk_pieces, 0U);
  end2.start(0);
  reads.join();
}

TEST_F(LinkTest, TheOwnerOfALargeMessageIsReleasedWhenItIsSent) {
  connect();
  start(0);
  start(1);
  Parts parts = parts_with({std::string(kLargeSize, 'x')});
  const std::weak_ptr<void> owner = parts[0].owner;
  ASSERT_TRUE(end1.streams[0]->send(std::move(parts)));
  end2.next();
  for (const auto until = limit(); !owner.expired() && Clock::now() < until;) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(owner.expired());
}

// Sends a large message while memory is short, on this thread or on the one that writes the rest.
void send_without_memory(int number, bool on_writer, bool& has_failed) {
  End sender, receiver;
  auto [here, there] = socket_pair();
  sender.stream(std::move(here), false);
  receiver.stream(std::move(there), false);
  sender.start(0);
  receiver.start(0);
  const auto set_writer = [&](int next) {
    std::atomic<int> left{-1};
    sender.writer.post([&] {
      left = fail_allocation(next);
      left.notify_all();
    });
    left.wait(-1);
    return left.load();
  };
  Parts parts = parts_with({std::string(kLargeSize, 'x')});
  bool is_sent = false;
  on_writer ? set_writer(number) : fail_allocation(number);
  try {
    is_sent = sender.streams[0]->send(std::move(parts));
  } catch (const std::bad_alloc&) {
    EXPECT_TRUE(sender.link->is_empty()) << "it is sent later";
  }
  has_failed = !on_writer && fail_allocation(0) == 0;
  if (!is_sent) {
    ASSERT_TRUE(sender.streams[0]->send(parts_with({"small"})));
  }
  Event event;
  bool has_arrived = false;
  for (const auto until = Clock::now() + std::chrono::seconds(10);
       !has_arrived && !receiver.has_ended && Clock::now() < until;) {
    has_arrived = receiver.inbox.receive(event, Clock::now() + std::chrono::milliseconds(1)) == Received::kEvent;
  }
  has_failed = has_failed || (on_writer && set_writer(0) == 0);
  EXPECT_TRUE(has_arrived || (has_failed && receiver.has_ended));
  if (has_arrived) {
    EXPECT_EQ(bytes_in(event.parts[0]), is_sent ? std::string(kLargeSize, 'x') : "small");
  }
  sender.streams[0]->close(Clock::now());
  receiver.streams[0]->close(Clock::now());
}

TEST_F(LinkTest, ALargeMessageArrivesWholeOrTheConnectionEndsWhenMemoryIsShort) {
  for (const bool on_writer : {false, true}) {
    bool has_failed = true;
    for (int number = 1; has_failed && number < 40; ++number) {
      SCOPED_TRACE("allocation " + std::to_string(number) + (on_writer ? " of the writer" : ""));
      send_without_memory(number, on_writer, has_failed);
      ASSERT_FALSE(HasFailure());
    }
  }
}

TEST_F(LinkTest, AClosedLinkTakesNoMessage) {
  start(0);
  end1.streams[0]->close(Clock::now());
  EXPECT_FALSE(end1.streams[0]->send(parts_with({std::string(kLargeSize, 'x')})));
}

}  // namespace
}  // namespace rpc_backends::zeromq
