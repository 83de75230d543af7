// A connection between two workers: messages, refusals, its end and its liveness.
#include "stream.h"

#include <gtest/gtest.h>
#include <linux/pkt_sched.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "endpoint.h"
#include "failing_new.h"
#include "keys.h"
#include "parts.h"
#include "socket_pair.h"

namespace rpc_backends::zeromq {
namespace {

constexpr size_t kMaxMessage = size_t{8} << 20;

Clock::time_point limit() {
  return Clock::now() + std::chrono::seconds(60);  // no passing test waits that long
}

Settings some_settings() {
  Settings settings;
  settings.max_message = kMaxMessage;
  settings.heartbeat = 3600;
  settings.long_link = 3600;  // no link is long
  return settings;
}

// One end, with everything that it needs.
struct End {
  explicit End(int peer) : peer(peer) {}

  void open(std::unique_ptr<Channel> channel, bool is_lane = false) {
    stream = std::make_shared<Stream>(
        Stream::Services{settings, inbox, loop, writer, releaser, counters, nullptr}, peer, std::move(channel),
        [this](const std::string& why) {
          reason = why;
          has_ended = true;
          has_ended.notify_all();
        },
        nullptr, is_lane);
  }

  Event next() {
    Event event;
    EXPECT_EQ(inbox.receive(event, limit()), Received::kEvent);
    return event;
  }

  // Reads until the stream has ended; no message must arrive.
  void wait_for_end() {
    const auto until = limit();
    Event event;
    while (!has_ended && Clock::now() < until) {
      EXPECT_NE(inbox.receive(event, Clock::now() + std::chrono::milliseconds(1)), Received::kEvent);
    }
    ASSERT_TRUE(has_ended);
  }

  const int peer;
  Settings settings = some_settings();
  Counters counters;
  Inbox inbox;
  EventLoop loop{"test-events"}, writer{"test-writes"};
  Releaser releaser{"test-release", 0};
  std::string reason;
  std::atomic<bool> has_ended{false};
  std::shared_ptr<Stream> stream;
};

struct Kind {
  const char* name;
  bool is_over_tcp, is_encrypted;
  int receive_buffer = 0;  // bytes; 0 for the system's
};

class StreamTest : public testing::TestWithParam<Kind> {
 protected:
  StreamTest() { connect(end1, end2); }

  ~StreamTest() override { close(end1, end2); }

  static void connect(End& end1, End& end2) {
    auto [here, there] = GetParam().is_over_tcp ? tcp_pair() : socket_pair();
    for (const int fd : {here->get(), there->get()}) {
      tune(fd, 60);
      if (const int bytes = GetParam().receive_buffer; bytes > 0) {
        ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
      }
    }
    if (!GetParam().is_encrypted) {
      end1.open(std::make_unique<Channel>(std::move(here)));
      end2.open(std::make_unique<Channel>(std::move(there)));
      return;
    }
    const Crypto& crypto = Crypto::get(false);
    const auto [public_key, secret_key] = make_keys(crypto);
    const TlsContext context(crypto, public_key, secret_key);
    auto connecting = context.connecting(std::move(here), public_key);
    auto listening = context.listening(std::move(there));
    auto of_end1 = TlsChannel::Handshake::kNeedsData, of_end2 = of_end1;
    for (const auto until = limit();
         (of_end1 != of_end2 || of_end1 != TlsChannel::Handshake::kDone) && Clock::now() < until;) {
      of_end1 = of_end1 == TlsChannel::Handshake::kDone ? of_end1 : connecting->shake_hands();
      of_end2 = of_end2 == TlsChannel::Handshake::kDone ? of_end2 : listening->shake_hands();
    }
    EXPECT_EQ(of_end1, TlsChannel::Handshake::kDone);
    EXPECT_EQ(of_end2, TlsChannel::Handshake::kDone);
    end1.open(std::move(connecting));
    end2.open(std::move(listening));
  }

  static void close(End& end1, End& end2) {
    end1.stream->close(Clock::now());
    end2.stream->close(Clock::now());
  }

  void start() { start(end1, end2); }

  static void start(End& end1, End& end2) {
    end1.stream->start();
    end2.stream->start();
  }

  End end1{2}, end2{1};
};

TEST_P(StreamTest, CarriesMessagesInBothDirections) {
  start();
  ASSERT_TRUE(end1.stream->send(parts_with({"request", ""})));
  Event event = end2.next();
  EXPECT_EQ(event.peer, 1);
  ASSERT_EQ(event.parts.size(), 2U);
  EXPECT_EQ(bytes_in(event.parts[0]), "request");
  ASSERT_TRUE(end2.stream->send(parts_with({"reply"})));
  event = end1.next();
  EXPECT_EQ(event.peer, 2);
  EXPECT_EQ(bytes_in(event.parts[0]), "reply");
}

TEST_P(StreamTest, SendsWhatWasQueuedBeforeItsStartInOrder) {
  for (const char* text : {"first", "second", "third"}) {
    ASSERT_TRUE(end1.stream->send(parts_with({text})));
  }
  start();
  for (const char* text : {"first", "second", "third"}) {
    EXPECT_EQ(bytes_in(end2.next().parts[0]), text);
  }
}

TEST_P(StreamTest, MessagesLargerThanTheSocketsBufferStayInOrder) {
  start();
  constexpr int kMessages = 20;
  for (int i = 0; i < kMessages; ++i) {
    const size_t size = i % 5 == 0 ? kMaxMessage : 10;
    ASSERT_TRUE(end1.stream->send(parts_with({std::string(size, static_cast<char>('a' + i))})));
  }
  for (int i = 0; i < kMessages; ++i) {
    const Event event = end2.next();
    EXPECT_EQ(*static_cast<const char*>(event.parts[0].data), 'a' + i);
    EXPECT_EQ(event.parts[0].size, i % 5 == 0 ? kMaxMessage : 10U);
  }
}

// The receiver sleeps until most of a large message is there; it must not wait for more than that.
TEST_P(StreamTest, SmallMessagesArriveBehindLargeOnesOfAnySize) {
  start();
  constexpr size_t kWake = size_t{256} << 10;
  const std::vector<size_t> sizes = {1,         4096,      65535,         65536,     kWake - 1,  kWake,
                                     kWake + 1, 2 * kWake, 2 * kWake + 1, 1'000'000, kMaxMessage};
  for (const size_t size : sizes) {
    ASSERT_TRUE(end1.stream->send(parts_with({std::string(size, 'x')})));
    EXPECT_EQ(end2.next().parts[0].size, size);
    ASSERT_TRUE(end1.stream->send(parts_with({"small"})));
    EXPECT_EQ(bytes_in(end2.next().parts[0]), "small");
  }
}

TEST_P(StreamTest, TheEndIsSeenInTheMiddleOfALargeMessage) {
  start();
  end1.writer.stop();  // so only what fits into the socket is sent
  ASSERT_TRUE(end1.stream->send(parts_with({std::string(kMaxMessage, 'x')})));
  Event event;
  while (end2.inbox.receive(event, Clock::now() + std::chrono::milliseconds(100)) != Received::kTimeout) {
  }
  EXPECT_FALSE(end2.has_ended);
  ::shutdown(end1.stream->fd(), SHUT_WR);
  end2.wait_for_end();
}

int priority_of(const Stream& stream) {
  int priority = -1;
  socklen_t size = sizeof priority;
  EXPECT_EQ(::getsockopt(stream.fd(), SOL_SOCKET, SO_PRIORITY, &priority, &size), 0);
  return priority;
}

// pfifo_fast serves its classes in strict order, so a lane of a lower one would starve beside other programs.
TEST_P(StreamTest, OnlyTheFirstConnectionIsAheadOfOtherTraffic) {
  start();
  EXPECT_EQ(priority_of(*end1.stream), TC_PRIO_INTERACTIVE);
  auto [here, there] = tcp_pair();
  End lane{2};
  lane.open(std::make_unique<Channel>(std::move(here)), true);
  lane.stream->start();
  EXPECT_EQ(priority_of(*lane.stream), TC_PRIO_BESTEFFORT);
  lane.stream->close(Clock::now());
}

TEST_P(StreamTest, ReleasesTheOwnerOfASentMessage) {
  start();
  Parts parts = parts_with({std::string(kMaxMessage, 'x')});
  const std::weak_ptr<void> owner = parts[0].owner;
  ASSERT_TRUE(end1.stream->send(std::move(parts)));
  end2.next();
  for (const auto until = limit(); !owner.expired() && Clock::now() < until;) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(owner.expired());
}

TEST_P(StreamTest, RefusesToSendMoreThanItsLimit) {
  start();
  EXPECT_THROW(end1.stream->send(parts_with({std::string(kMaxMessage + 1, 'x')})), TransportError);
  ASSERT_TRUE(end1.stream->send(parts_with({"next"})));
  EXPECT_EQ(bytes_in(end2.next().parts[0]), "next");
}

TEST_P(StreamTest, TellsThePeerWhyItIsRefused) {
  start();
  end1.stream->refuse("the reason");
  end2.wait_for_end();
  EXPECT_EQ(end2.reason, "the peer rejected this connection: the reason");
}

TEST_P(StreamTest, InvalidDataEndsBothSidesWithTheReason) {
  end2.stream->start();
  if (GetParam().is_encrypted) {
    ASSERT_EQ(::send(end1.stream->fd(), "garbage that is no record", 25, MSG_NOSIGNAL), 25);
    end2.wait_for_end();
    EXPECT_EQ(end2.reason, "the data that arrived was changed on its way");
    return;
  }
  ASSERT_EQ(::send(end1.stream->fd(), "garbage that is no message", 26, MSG_NOSIGNAL), 26);
  end2.wait_for_end();
  const std::string why = "the data is not a message of this protocol version";
  EXPECT_EQ(end2.reason, "the peer sent an invalid message: " + why);
  EXPECT_EQ(end2.counters.rejected, 1U);
  end1.stream->start();
  end1.wait_for_end();
  EXPECT_EQ(end1.reason, "the peer rejected this connection: " + why);
}

TEST_P(StreamTest, AForgottenPeerIsRefusedWithItsNextMessageOnly) {
  start();
  end2.stream->forget("it has left");
  ASSERT_TRUE(end2.stream->send(parts_with({"the last answer"})));
  EXPECT_EQ(bytes_in(end1.next().parts[0]), "the last answer");
  ASSERT_TRUE(end1.stream->send(parts_with({"too late"})));
  std::thread reads([this] {
    Event event;
    while (end2.counters.dropped == 0) {
      EXPECT_EQ(end2.inbox.receive(event, Clock::now() + std::chrono::milliseconds(1)), Received::kTimeout);
    }
  });
  end1.wait_for_end();
  reads.join();
  EXPECT_EQ(end1.reason, "the peer rejected this connection: it has left");
}

TEST_P(StreamTest, CloseSendsWhatIsQueuedAndThenEndsTheOtherSide) {
  start();
  ASSERT_TRUE(end1.stream->send(parts_with({std::string(kMaxMessage, 'x')})));
  ASSERT_TRUE(end1.stream->send(parts_with({"last"})));
  std::thread closing([this] { end1.stream->close(limit()); });
  EXPECT_EQ(end2.next().parts[0].size, kMaxMessage);
  EXPECT_EQ(bytes_in(end2.next().parts[0]), "last");
  closing.join();
  end2.wait_for_end();
  EXPECT_EQ(end2.reason, "");
  EXPECT_FALSE(end1.stream->send(parts_with({"after close"})));
}

TEST_P(StreamTest, CloseDeliversWhatHasArrivedBefore) {
  start();
  ASSERT_TRUE(end1.stream->send(parts_with({"not read yet"})));
  pollfd arrived{end2.stream->fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&arrived, 1, 60'000), 1);
  end2.stream->close(Clock::now());
  EXPECT_EQ(bytes_in(end2.next().parts[0]), "not read yet");
}

TEST_P(StreamTest, ASilentPeerGetsAPingAndAnswersIt) {
  end1.settings.heartbeat = 0;
  start();
  EXPECT_GE(end1.stream->check_liveness(), Clock::duration(0));
  std::atomic<bool> over{false};
  std::thread reads([&] {
    Event event;
    while (!over) {
      end2.inbox.receive(event, Clock::now() + std::chrono::milliseconds(1));
    }
  });
  // The pong counts as activity, so the silence becomes shorter at some time.
  Event event;
  auto silence = end1.stream->check_liveness();
  bool is_shorter = false;
  for (const auto until = limit(); !is_shorter && Clock::now() < until;) {
    end1.inbox.receive(event, Clock::now() + std::chrono::milliseconds(1));
    const auto now = end1.stream->check_liveness();
    is_shorter = now < silence;
    silence = now;
  }
  over = true;
  reads.join();
  EXPECT_TRUE(is_shorter);
}

// Over TCP, its system acknowledges what it has not read.
TEST_P(StreamTest, APeerThatReadsNothingIsSilentAlthoughMessagesAreSent) {
  start();
  Clock::duration silence{};
  for (int i = 0; i < 30; ++i) {
    ASSERT_TRUE(end1.stream->send(parts_with({std::string(100, 'x')})));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    silence = end1.stream->check_liveness();
  }
  EXPECT_GE(silence, std::chrono::milliseconds(200));
}

TEST_P(StreamTest, APeerThatReadsALargeMessageIsNotSilent) {
  end1.stream->start();
  end1.writer.stop();  // so this thread writes
  const auto bytes_in_socket = [this] {
    int bytes = 0;
    EXPECT_EQ(::ioctl(end1.stream->fd(), SIOCOUTQ, &bytes), 0);
    return bytes;
  };
  ASSERT_TRUE(end1.stream->send(parts_with({std::string(kMaxMessage, 'x')})));
  end1.stream->check_liveness();
  for (size_t read = 0; read < kMaxMessage;) {
    for (const size_t next = read + (size_t{1} << 20); read < std::min(next, kMaxMessage);) {
      end1.stream->flush();
      read += received(end2.stream->fd()).size();
    }
    // The peer reads faster than this worker writes.
    for (const auto until = limit(); bytes_in_socket() > 0 && Clock::now() < until;) {
      read += received(end2.stream->fd()).size();
    }
    if (read < kMaxMessage) {
      EXPECT_EQ(end1.stream->check_liveness(), Clock::duration(0)) << read;
    }
  }
}

// A connection whose peer sends pings without end.
class EndlessChannel final : public Channel {
 public:
  using Channel::Channel;
  using Channel::read;

  ssize_t read(const iovec* places, int count, bool& is_drained) override {
    is_drained = is_over;
    const auto ping = head_of(wire::Kind::kPing, 0, 0);
    ssize_t bytes = 0;
    for (const iovec& place : std::vector<iovec>(places, places + count)) {
      for (size_t i = 0; i < place.iov_len && !is_over; ++i, ++bytes) {
        static_cast<char*>(place.iov_base)[i] = ping[next_++ % ping.size()];
      }
    }
    errno = EAGAIN;
    return bytes > 0 ? bytes : -1;
  }

  std::atomic<bool> is_over{false};

 private:
  size_t next_ = 0;
};

TEST(EndlessStream, CloseEndsAlthoughThePeerKeepsSending) {
  auto [here, there] = socket_pair();
  End end{1};
  auto owned = std::make_unique<EndlessChannel>(std::move(here));
  EndlessChannel& channel = *owned;
  end.open(std::move(owned));
  end.stream->start();
  auto closing = std::async(std::launch::async, [&end] { end.stream->close(Clock::now()); });
  EXPECT_EQ(closing.wait_until(limit()), std::future_status::ready);
  channel.is_over = true;
  closing.wait();
}

TEST_P(StreamTest, CloseDeliversAsMuchAsTheSocketHolds) {
  start();
  const int buffer = 1 << 20;
  ::setsockopt(end2.stream->fd(), SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
  constexpr int kMessages = 11;
  const std::string text(size_t{16} << 10, 'x');
  for (int i = 0; i < kMessages; ++i) {
    ASSERT_TRUE(end1.stream->send(parts_with({text})));
  }
  end1.stream->drain(limit());
  end2.stream->close(Clock::now());
  for (int i = 0; i < kMessages; ++i) {
    EXPECT_EQ(bytes_in(end2.next().parts[0]), text);
  }
}

// --- shortage of memory -----------------------------------------------------------------------------

// The next message, or the reason of the end.
std::string next_or_end(End& end) {
  const auto until = Clock::now() + std::chrono::seconds(10);
  Event event;
  while (Clock::now() < until) {
    if (end.inbox.receive(event, Clock::now() + std::chrono::milliseconds(1)) == Received::kEvent) {
      return bytes_in(event.parts[0]);
    }
    if (end.has_ended) {
      return "the end";
    }
  }
  return "nothing";
}

TEST_P(StreamTest, WithoutMemoryToReadAMessageTheConnectionEnds) {
  constexpr int kMessages = 20;  // the inbox needs memory for them several times
  bool has_failed = true;
  for (int number = 1; has_failed; ++number) {
    End sender{2}, receiver{1};
    connect(sender, receiver);
    start(sender, receiver);
    for (int i = 0; i < kMessages; ++i) {
      ASSERT_TRUE(sender.stream->send(parts_with({std::to_string(i), std::string(100, 'x')})));
    }
    fail_allocation(number);
    try {
      receiver.stream->pump();
    } catch (const std::bad_alloc&) {
    }
    has_failed = fail_allocation(0) == 0;
    for (int i = 0; i < kMessages; ++i) {
      const std::string next = next_or_end(receiver);
      ASSERT_TRUE(next == std::to_string(i) || (has_failed && next == "the end"))
          << "allocation " << number << ": " << next;
      if (next == "the end") {
        break;
      }
    }
    close(sender, receiver);
    ASSERT_LT(number, 500);
  }
}

TEST_P(StreamTest, AMessageThatCannotBeSentForWantOfMemoryDoesNotLeaveLater) {
  bool has_failed = true;
  for (int number = 1; has_failed; ++number) {
    End sender{2}, receiver{1};
    connect(sender, receiver);
    start(sender, receiver);
    Parts parts = parts_with({"first", std::string(100, 'x')});
    bool is_sent = false;
    fail_allocation(number);
    try {
      is_sent = sender.stream->send(std::move(parts));
    } catch (const std::bad_alloc&) {
    }
    has_failed = fail_allocation(0) == 0;
    EXPECT_TRUE(is_sent || has_failed);
    sender.stream->send(parts_with({"second"}));
    const std::string next = next_or_end(receiver);
    EXPECT_TRUE(next == (is_sent ? "first" : "second") || (has_failed && next == "the end"))
        << "allocation " << number << ": " << next;
    close(sender, receiver);
    ASSERT_LT(number, 200);
  }
}

TEST_P(StreamTest, WaitingForQueuedMessagesEndsWhenTheStreamIsAbandoned) {
  ASSERT_TRUE(end1.stream->send(parts_with({"queued"})));
  std::thread waiting([this] { end1.stream->wait_until_sent(limit()); });
  end1.stream->abandon();
  waiting.join();
  EXPECT_LT(Clock::now(), limit());
}

TEST_P(StreamTest, ThreadsMaySendAtTheSameTime) {
  start();
  constexpr int kThreads = 4, kMessages = 100;
  std::vector<std::thread> threads;
  for (int sender = 0; sender < kThreads; ++sender) {
    threads.emplace_back([&, sender] {
      for (int i = 0; i < kMessages; ++i) {
        const std::string text{static_cast<char>(sender), static_cast<char>(i)};
        EXPECT_TRUE(end1.stream->send(parts_with({text, std::string(static_cast<size_t>(i) * 500, 'x')})));
      }
    });
  }
  std::vector<int> next(kThreads, 0);
  for (int i = 0; i < kThreads * kMessages; ++i) {
    const Event event = end2.next();
    ASSERT_EQ(event.parts.size(), 2U);
    const std::string text = bytes_in(event.parts[0]);
    EXPECT_EQ(text[1], next[static_cast<size_t>(text[0])]++);  // the messages of a thread stay in order
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

INSTANTIATE_TEST_SUITE_P(Channels, StreamTest,
                         testing::Values(Kind{"Plain", false, false}, Kind{"Tls", false, true},
                                         Kind{"PlainOverTcp", true, false}, Kind{"TlsOverTcp", true, true},
                                         Kind{"PlainOverTcpWithShortBuffers", true, false, 128 << 10},
                                         Kind{"TlsOverTcpWithShortBuffers", true, true, 128 << 10}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace rpc_backends::zeromq
