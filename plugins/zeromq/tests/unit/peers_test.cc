// The peers that this worker calls: the connection to each, its loss, and the way back.
#include "peers.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "failing_new.h"
#include "greeting.h"
#include "parts.h"
#include "run_posted.h"
#include "zeromq_transport.h"

namespace rpc_backends::zeromq {
namespace {

constexpr int kPeer = 7;

Clock::time_point limit() {
  return Clock::now() + std::chrono::seconds(60);  // no passing test waits that long
}

Settings some_settings() {
  Settings settings;
  settings.max_message = uint64_t{8} << 20;
  settings.heartbeat = 3600;
  settings.heartbeat_timeout = 3600;
  settings.handshake_timeout = 60;
  return settings;
}

std::string message_in(const Event& event) {
  return event.parts.empty() ? "no message, but: " + std::string(event.reason) : bytes_in(event.parts[0]);
}

// What a worker has beside its peers.
struct Worker {
  Stream::Services services() { return {settings, inbox, loop, writer, releaser, counters, nullptr}; }

  Event next() {
    Event event;
    EXPECT_EQ(inbox.receive(event, limit()), Received::kEvent);
    return event;
  }

  Settings settings = some_settings();
  Counters counters;
  Inbox inbox;
  EventLoop loop{"test-events"}, writer{"test-writes"};
  Releaser releaser{"test-release", 0};
};

// A peer that admits every connection.
class Listening {
 public:
  Listening() : socket_(Endpoint::listen("tcp://127.0.0.1:*", text_)) {}

  Endpoint endpoint() const { return Endpoint(text_); }

  // The next connection, once it is admitted.
  std::shared_ptr<Stream> accept() {
    for (const auto until = limit(); Clock::now() < until;) {
      if (auto stream = try_accept()) {
        return stream;
      }
    }
    ADD_FAILURE() << "no connection";
    return nullptr;
  }

  // The next connection, once it is admitted; null if there is none, or the worker gives it up before its greeting.
  std::shared_ptr<Stream> try_accept() {
    if (!await(socket_->get(), 10)) {
      return nullptr;
    }
    auto connection = std::make_unique<Fd>(::accept4(socket_->get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    EXPECT_TRUE(await(connection->get(), 60'000));
    Greeting greeting{};
    if (::recv(connection->get(), &greeting, sizeof greeting, 0) != ssize_t{sizeof greeting}) {
      return nullptr;
    }
    Answer answer{};
    std::copy_n(kForm, sizeof kForm, answer.form);
    answer.is_admitted = 1;
    EXPECT_EQ(::send(connection->get(), &answer, sizeof answer, MSG_NOSIGNAL), ssize_t{sizeof answer});
    auto stream = std::make_shared<Stream>(worker_.services(), greeting.worker,
                                           std::make_unique<Channel>(std::move(connection)), [](const std::string&) {});
    stream->start();
    streams_.push_back(stream);
    return stream;
  }

  Event next() { return worker_.next(); }

  ~Listening() {
    for (const auto& stream : streams_) {
      stream->close(Clock::now());
    }
  }

 private:
  static bool await(int fd, int milliseconds) {
    pollfd ready{fd, POLLIN, 0};
    return ::poll(&ready, 1, milliseconds) == 1;
  }

  std::string text_;
  std::unique_ptr<Fd> socket_;
  Worker worker_;
  std::vector<std::shared_ptr<Stream>> streams_;
};

// A process that waits until it is killed. Its parent does not wait for it before this object is destroyed.
class Child {
 public:
  Child() : pid_(::fork()) {
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::pause();
      ::_exit(0);
    }
    identity_ = {pid_, start_of(pid_)};
  }

  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  Process identity() const { return identity_; }

  // Returns once it has ended.
  void kill() const {
    ::kill(pid_, SIGKILL);
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
  }

 private:
  const pid_t pid_;
  Process identity_;
};

Credentials of(const Process& process) {
  Credentials credentials;
  credentials.process = process;
  return credentials;
}

class PeersTest : public testing::Test {
 protected:
  PeersTest() { peers.start(1); }

  ~PeersTest() override {
    peers.close(Clock::now());
    worker.loop.stop();  // its tasks use the peers
  }

  // Learns the peer, and connects to it with a message.
  std::shared_ptr<Stream> connect() { return connect(there); }
  std::shared_ptr<Stream> connect(Listening& peer) {
    peers.learn(kPeer, peer.endpoint(), {});
    return send(peer);
  }

  // The connection on which the peer gets the message.
  std::shared_ptr<Stream> send() { return send(there); }
  std::shared_ptr<Stream> send(Listening& peer) {
    peers.send(kPeer, parts_with({"hello"}));
    auto stream = peer.accept();
    EXPECT_EQ(message_in(peer.next()), "hello");
    return stream;
  }

  // Connects to a peer whose process then ends.
  void lose_ended() {
    const Child process;
    peers.learn(kPeer, there.endpoint(), of(process.identity()));
    send();
    process.kill();
    peers.end_connection(kPeer, "it has closed the connection");
    EXPECT_EQ(worker.next().kind, Event::Kind::kLost);
  }

  std::string error_of_send() {
    try {
      peers.send(kPeer, parts_with({"hello"}));
    } catch (const TransportError& error) {
      return error.what();
    }
    return "";
  }

  Worker worker;
  Peers peers{worker.services()};
  Listening there;
};

TEST_F(PeersTest, AnUnknownPeerCannotBeSentTo) {
  EXPECT_EQ(error_of_send(), "worker 7 is not known to this worker");
}

TEST_F(PeersTest, AWorkerKeepsItsId) {
  peers.start(1);
  EXPECT_THROW(peers.start(2), TransportError);
  EXPECT_THROW(peers.start(-1), TransportError);
  EXPECT_TRUE(peers.started());
}

TEST_F(PeersTest, MessagesThatHaveArrivedComeBeforeTheLoss) {
  const auto stream = connect();
  ASSERT_TRUE(stream->send(parts_with({"the last words"})));
  stream->drain(limit());  // they are in the worker's socket
  peers.end_connection(kPeer, "it sent nonsense");
  run_posted(worker.loop);

  EXPECT_EQ(message_in(worker.next()), "the last words");
  const Event loss = worker.next();
  EXPECT_EQ(loss.kind, Event::Kind::kLost);
  EXPECT_EQ(loss.peer, kPeer);
  EXPECT_EQ(loss.reason, "it sent nonsense");
}

TEST_F(PeersTest, ALostPeerIsFoundByAReconnect) {
  connect();
  peers.end_connection(kPeer, "it sent nonsense");
  EXPECT_EQ(worker.next().kind, Event::Kind::kLost);
  EXPECT_EQ(error_of_send(), "worker 7 is lost: it sent nonsense");

  const auto stream = there.accept();
  EXPECT_EQ(worker.next().kind, Event::Kind::kFound);
  peers.send(kPeer, parts_with({"again"}));
  EXPECT_EQ(message_in(there.next()), "again");
  EXPECT_EQ(worker.counters.peers_lost, 1U);
  EXPECT_EQ(worker.counters.peers_found, 1U);
}

TEST_F(PeersTest, NothingConnectsToThePortOfAPeerWhoseProcessHasEnded) {
  lose_ended();

  worker.loop.post([this] { peers.hint(kPeer); });
  run_posted(worker.loop);
  // A reconnect would come earlier.
  std::promise<void> is_later;
  worker.loop.at(Clock::now() + std::chrono::milliseconds(200), [&is_later] { is_later.set_value(); });
  is_later.get_future().wait();
  EXPECT_EQ(there.try_accept(), nullptr);
}

TEST_F(PeersTest, AnotherProcessOfAPeerIsFound) {
  lose_ended();

  Listening elsewhere;
  peers.learn(kPeer, elsewhere.endpoint(), of(Process{::getpid(), start_of(::getpid())}));
  elsewhere.accept();
  EXPECT_EQ(worker.next().kind, Event::Kind::kFound);
}

TEST_F(PeersTest, NothingIsSentToThePortOfAPeerThatHasEndedBeforeTheFirstMessage) {
  const Child process;
  process.kill();
  peers.learn(kPeer, there.endpoint(), of(process.identity()));
  (void)error_of_send();                   // the connection may end before the message is queued
  EXPECT_EQ(there.try_accept(), nullptr);  // a connection without a greeting
  const Event loss = worker.next();
  EXPECT_EQ(loss.kind, Event::Kind::kLost);
  EXPECT_EQ(loss.reason, "its process has ended");
}

TEST_F(PeersTest, AProcessThatHasTheIdOfAnEarlierOneIsNotThePeer) {
  peers.learn(kPeer, there.endpoint(), of(Process{::getpid(), start_of(::getpid()) - 1}));
  (void)error_of_send();
  EXPECT_EQ(worker.next().reason, "its process has ended");
}

TEST_F(PeersTest, AThreadThatHasTheIdOfAnEarlierProcessIsNotThePeer) {
  std::promise<pid_t> id;
  std::promise<void> may_end;
  std::thread thread([&] {
    id.set_value(::gettid());
    may_end.get_future().wait();
  });
  peers.learn(kPeer, there.endpoint(), of(Process{id.get_future().get(), 1}));
  (void)error_of_send();
  EXPECT_EQ(worker.next().reason, "its process has ended");
  may_end.set_value();
  thread.join();
}

TEST_F(PeersTest, AnotherAddressLosesThePeerAndFindsItThere) {
  connect();
  Listening elsewhere;
  peers.learn(kPeer, elsewhere.endpoint(), {});
  const Event loss = worker.next();
  EXPECT_EQ(loss.kind, Event::Kind::kLost);
  EXPECT_EQ(loss.reason, "its address has changed");

  elsewhere.accept();
  EXPECT_EQ(worker.next().kind, Event::Kind::kFound);
}

// The agent relies on it. Meanwhile the peer may connect to this worker, which makes a reconnect likely to succeed.
TEST_F(PeersTest, AHintDuringTheLossFindsThePeerOnlyAfterwards) {
  std::promise<void> may_end;
  std::shared_ptr<void> owner(nullptr, [&](void*) { may_end.get_future().wait(); });
  peers.learn(kPeer, there.endpoint(), {});
  // It stays queued, because the connection is not admitted, whose end waits for its owner.
  peers.send(kPeer, {Part{"", 0, std::move(owner)}});
  Listening elsewhere;
  std::thread learning([this, &elsewhere] { peers.learn(kPeer, elsewhere.endpoint(), {}); });
  while (worker.counters.peers_lost == 0) {
    std::this_thread::yield();
  }
  worker.loop.post([this] { peers.hint(kPeer); });
  bool is_connected = false;
  for (const auto until = Clock::now() + std::chrono::milliseconds(300); !is_connected && Clock::now() < until;) {
    is_connected = elsewhere.try_accept() != nullptr;
  }
  EXPECT_FALSE(is_connected);
  may_end.set_value();
  learning.join();

  if (!is_connected) {
    elsewhere.accept();
  }
  EXPECT_EQ(worker.next().kind, Event::Kind::kLost);
  EXPECT_EQ(worker.next().kind, Event::Kind::kFound);
}

TEST_F(PeersTest, TheSameAddressChangesNothing) {
  connect();
  peers.learn(kPeer, there.endpoint(), {});
  peers.send(kPeer, parts_with({"on the same connection"}));
  EXPECT_EQ(message_in(there.next()), "on the same connection");
  EXPECT_EQ(worker.counters.peers_lost, 0U);
}

TEST_F(PeersTest, APeerThatNeverListensIsLostWithTheReason) {
  std::string text;
  Endpoint::listen("tcp://127.0.0.1:*", text);  // and closes the socket
  peers.learn(kPeer, Endpoint(text), {});
  (void)error_of_send();  // the refusal may come before the message is queued
  const Event loss = worker.next();
  EXPECT_EQ(loss.kind, Event::Kind::kLost);
  EXPECT_NE(std::string(loss.reason).find("Connection refused; no process listens there"), std::string::npos)
      << std::string(loss.reason);
}

TEST_F(PeersTest, ALossIsNotReportedForAPeerThatWasForgottenAndLearnedAgain) {
  for (int round = 0; round < 20; ++round) {
    Listening peer;  // of this round only: a reconnect that was given up may wait for accept() afterwards
    const auto stream = connect(peer);
    // Reading these takes a while, between the loss and its report.
    for (int i = 0; i < 500; ++i) {
      ASSERT_TRUE(stream->send(parts_with({std::string(1000, 'x')})));
    }
    const uint64_t lost_before = worker.counters.peers_lost;
    peers.end_connection(kPeer, "it sent nonsense");
    while (worker.counters.peers_lost == lost_before) {
    }
    peers.forget(kPeer);
    Event forgotten;
    forgotten.kind = Event::Kind::kFound;
    worker.inbox.push(std::move(forgotten));
    peers.learn(kPeer, peer.endpoint(), {});
    run_posted(worker.loop);

    bool is_forgotten = false;
    Event event;
    while (worker.inbox.receive(event, Clock::now()) == Received::kEvent) {
      is_forgotten = is_forgotten || event.kind == Event::Kind::kFound;
      EXPECT_FALSE(is_forgotten && event.kind == Event::Kind::kLost) << "in round " << round;
    }
    EXPECT_TRUE(is_forgotten);
    peers.forget(kPeer);
  }
}

TEST_F(PeersTest, ALossIsReportedAlthoughMemoryIsShort) {
  int left = 0;
  for (int number = 1; left == 0; ++number) {
    connect();
    worker.loop.post([number] { fail_allocation(number); });
    peers.end_connection(kPeer, "it sent nonsense, for a reason too long for a short string");
    worker.loop.post([&left] { left = fail_allocation(0); });
    run_posted(worker.loop);

    const Event loss = worker.next();
    EXPECT_EQ(loss.kind, Event::Kind::kLost) << "allocation " << number;
    EXPECT_EQ(loss.reason, "it sent nonsense, for a reason too long for a short string");
    there.accept();
    EXPECT_EQ(worker.next().kind, Event::Kind::kFound) << "allocation " << number;
    peers.forget(kPeer);
    EXPECT_LT(number, 100);
  }
}

TEST_F(PeersTest, ALostPeerIsFoundAlthoughMemoryIsShort) {
  int left = 0;
  for (int number = 1; left == 0; ++number) {
    Listening peer;  // of this round only: further reconnects may wait for accept() afterwards
    connect(peer);
    peers.end_connection(kPeer, "it sent nonsense");
    worker.loop.post([number] { fail_allocation(number); });
    EXPECT_EQ(worker.next().kind, Event::Kind::kLost);

    std::atomic<bool> is_found{false};
    std::thread accepting([&] {
      while (!is_found) {
        peer.try_accept();
      }
    });
    EXPECT_EQ(worker.next().kind, Event::Kind::kFound) << "allocation " << number;
    is_found = true;
    accepting.join();
    worker.loop.post([&left] { left = fail_allocation(0); });
    peers.forget(kPeer);
    run_posted(worker.loop);
    Event event;
    while (worker.inbox.receive(event, Clock::now()) == Received::kEvent) {  // it may have been lost once more
    }
    ASSERT_LT(number, 100);
  }
}

TEST_F(PeersTest, ANewAddressThatCannotBeLearnedForWantOfMemoryCanBeLearnedLater) {
  Listening elsewhere;
  bool has_failed = true;
  for (int number = 1; has_failed; ++number) {
    connect();
    fail_allocation(number);
    try {
      peers.learn(kPeer, elsewhere.endpoint(), {});
    } catch (const std::bad_alloc&) {
    }
    has_failed = fail_allocation(0) == 0;
    peers.learn(kPeer, elsewhere.endpoint(), {});

    EXPECT_EQ(worker.next().kind, Event::Kind::kLost) << "allocation " << number;
    elsewhere.accept();
    EXPECT_EQ(worker.next().kind, Event::Kind::kFound) << "allocation " << number;
    peers.forget(kPeer);
  }
}

TEST_F(PeersTest, WhatIsQueuedBehindAHandshakeIsWaitedFor) {
  peers.learn(kPeer, there.endpoint(), {});
  peers.send(kPeer, parts_with({"hello"}));
  std::thread closing([this] {
    peers.wait_until_sent(limit());
    peers.close(limit());
  });
  there.accept();
  EXPECT_EQ(message_in(there.next()), "hello");
  closing.join();
  EXPECT_EQ(error_of_send(), "worker 7 is not known to this worker");
}

TEST(ZeroMQTransport, AForgottenPeerIsUnknownAlthoughMemoryIsShort) {
  int number = 1;
  for (bool has_failed = true; has_failed && !testing::Test::HasFailure(); ++number) {
    ZeroMQTransport transport(some_settings(), {}, {});
    transport.start(1);
    transport.learn_endpoint(kPeer, "tcp://127.0.0.1:9", {});
    fail_allocation(number);
    transport.forget(kPeer);
    has_failed = fail_allocation(0) == 0;
    EXPECT_THROW(transport.send(kPeer, parts_with({"x"}), false), TransportError) << "allocation " << number;
  }
  EXPECT_GT(number, 2);
}

}  // namespace
}  // namespace rpc_backends::zeromq
