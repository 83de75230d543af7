// Links between two transports in this process: how they open, what they carry, and how they end.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>

#include "two_workers.h"

namespace rpc_backends::ucx {
namespace {

using LinksTest = TwoWorkers;

TEST_F(LinksTest, TheFirstMessageOpensTheLink) {
  introduce();
  EXPECT_EQ(worker1.count("connections"), 0U);
  exchange();
  EXPECT_EQ(worker1.count("connections"), 1U);
  EXPECT_EQ(worker2.count("connections"), 1U);
}

TEST_F(LinksTest, MessagesQueuedBeforeTheAnswerToTheGreetingArriveInOrder) {
  introduce();
  for (int i = 0; i < 50; ++i) {
    worker1.transport->send(2, parts_with({std::to_string(i), std::string(static_cast<size_t>(i % 7) * 10000, 'x')}),
                            false);
  }
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(bytes_in(next(worker2, worker1).parts[0]), std::to_string(i));
  }
}

TEST_F(LinksTest, ASmallMessageOvertakesALargeOne) {
  introduce();
  exchange();
  const std::string large(size_t{64} << 20, 'x');
  worker1.transport->send(2, parts_with({large}), false);
  worker1.transport->send(2, parts_with({"small"}), false);
  EXPECT_EQ(bytes_in(next(worker2, worker1).parts[0]), "small");
  EXPECT_TRUE(bytes_in(next(worker2, worker1).parts[0]) == large);
}

TEST_F(LinksTest, LargeMessagesArriveInOrder) {
  introduce();
  for (size_t i = 1; i <= 20; ++i) {
    worker1.transport->send(2, parts_with({std::string((i % 3 + 1) * wire::kLargeMessage + i, 'x')}), false);
  }
  for (size_t i = 1; i <= 20; ++i) {
    EXPECT_EQ(next(worker2, worker1).parts[0].size, (i % 3 + 1) * wire::kLargeMessage + i);
  }
}

TEST_F(LinksTest, BothSidesMayGreetAtTheSameTime) {
  introduce();
  worker1.transport->send(2, parts_with({"from one"}), false);
  worker2.transport->send(1, parts_with({"from two"}), false);
  const auto events = run_until([](const auto& all) { return all.size() == 2; });
  EXPECT_EQ(bytes_in(events.at(1)[0].parts[0]), "from two");
  EXPECT_EQ(bytes_in(events.at(2)[0].parts[0]), "from one");
  EXPECT_EQ(worker1.count("connections"), 1U);
  EXPECT_EQ(worker2.count("connections"), 1U);
}

TEST_F(LinksTest, AnUnknownPeerCannotBeSentTo) {
  EXPECT_THROW(worker1.transport->send(2, parts_with({"x"}), false), TransportError);
  EXPECT_THROW(worker1.transport->learn_address(-1, "", {}), TransportError);
}

TEST_F(LinksTest, AMessageBeyondThePeersLimitIsRefusedBeforeItIsSent) {
  Credentials limited = credentials(1, 2);
  limited.max_message = 10;
  worker1.transport->learn_address(2, worker2.transport->address(), limited);
  worker2.learn(worker1);
  EXPECT_THROW(worker1.transport->send(2, parts_with({"12345678901"}), false), TransportError);
  worker1.transport->send(2, parts_with({"1234567890"}), false);
  EXPECT_EQ(bytes_in(next(worker2, worker1).parts[0]), "1234567890");
}

TEST_F(LinksTest, AGreetingWithAWrongProofIsRefused) {
  Credentials wrong = credentials(1, 2);
  wrong.our_proof.fill('w');
  worker1.transport->learn_address(2, worker2.transport->address(), wrong);
  worker2.learn(worker1);
  worker1.transport->send(2, parts_with({"x"}), false);
  const auto events = run_until([this](const auto&) { return worker2.count("refused") == 1; });
  EXPECT_TRUE(events.empty());
}

TEST_F(LinksTest, AnUnknownProofIsLookedUpAndAdmittedOnceItIsLearned) {
  std::atomic<int> lookups{0};
  WorkerOf worker3(3, some_settings(), [&](const std::string&, double) {
    ++lookups;
    return std::nullopt;
  });
  worker1.learn(worker3);
  worker1.transport->send(3, parts_with({"before it is known"}), false);
  for (const auto until = limit(); lookups == 0 && Clock::now() < until;) {
    Event event;
    EXPECT_FALSE(worker1.receive(event));
    EXPECT_FALSE(worker3.receive(event));
  }
  worker3.learn(worker1);
  // The greeting may have been refused already, because nobody was found; then the next one is admitted.
  Event event;
  for (const auto until = limit(); !worker3.receive(event) && Clock::now() < until && worker3.count("refused") == 0;) {
    worker1.receive(event);
  }
  EXPECT_EQ(lookups, 1);
}

TEST_F(LinksTest, APeerThatDoesNotAnswerInTimeIsLost) {
  Settings hasty = some_settings();
  hasty.handshake_timeout = milliseconds(50);
  WorkerOf worker3(3, hasty);
  worker3.learn(worker2);  // which nobody polls
  worker3.transport->send(2, parts_with({"x"}), false);
  Event event;
  for (const auto until = limit(); !worker3.receive(event) && Clock::now() < until;) {
  }
  EXPECT_EQ(event.kind, Kind::kLost);
  EXPECT_EQ(event.reason, "it has not answered");
  EXPECT_THROW(worker3.transport->send(2, parts_with({"y"}), false), TransportError);
}

TEST_F(LinksTest, CloseSaysGoodbyeAfterTheLastMessage) {
  introduce();
  exchange();
  worker1.transport->send(2, parts_with({std::string(3 << 20, 'x')}), false);
  std::thread closing([this] { worker1.transport->close(60); });
  std::vector<Event> events;
  Event event;
  for (const auto until = limit(); events.size() < 2 && Clock::now() < until;) {
    if (worker2.receive(event)) {
      events.push_back(std::move(event));
    }
  }
  closing.join();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].kind, Kind::kMessage);
  EXPECT_EQ(events[0].parts[0].size, size_t{3} << 20);
  EXPECT_EQ(events[1].kind, Kind::kLost);
  EXPECT_EQ(events[1].reason, "it has closed the connection");
  EXPECT_GT(events[1].order, events[0].order);
}

// Over a network, large messages have a connection of their own, and the goodbye goes over both.
TEST(NetworkedLinks, TheGoodbyeOfTheFirstConnectionDoesNotCutOffALargeMessage) {
  Settings settings = some_settings();
  settings.config = {
      {"TLS", "tcp"}, {"NET_DEVICES", "lo"}, {"KEEPALIVE_INTERVAL", "inf"}, {"RNDV_SCHEME", "get_zcopy"}};
  constexpr size_t kSize = size_t{256} << 20;
  WorkerOf worker1{1, settings}, worker2{2, settings};
  worker1.learn(worker2);
  worker2.learn(worker1);
  worker1.transport->send(2, parts_with({"small"}), false);
  std::vector<Event> events;
  Event event;
  for (const auto until = limit(); events.empty() && Clock::now() < until;) {
    worker1.receive(event);
    if (worker2.receive(event)) {
      events.push_back(std::move(event));
    }
  }
  worker1.transport->send(2, parts_with({std::string(kSize, 'x')}), false);
  std::thread closing([&worker1] { worker1.transport->close(60); });
  for (const auto until = limit(); events.size() < 3 && Clock::now() < until;) {
    if (worker2.receive(event)) {
      events.push_back(std::move(event));
    }
  }
  closing.join();
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[1].kind, Kind::kMessage) << std::string_view(events[1].reason);
  EXPECT_EQ(events[2].kind, Kind::kLost);
  EXPECT_EQ(events[2].reason, "it has closed the connection");
}

TEST_F(LinksTest, AForgottenPeerIsToldAndBecomesUnknown) {
  introduce();
  exchange();
  worker1.transport->forget(2);
  const Event event = next(worker2, worker1);
  EXPECT_EQ(event.kind, Kind::kLost);
  EXPECT_EQ(event.reason, "the worker has removed this one from its group");
  EXPECT_THROW(worker1.transport->send(2, parts_with({"x"}), false), TransportError);
  worker1.transport->forget(2);  // unknown by now
}

TEST_F(LinksTest, ARejectedPeerIsToldTheReasonAndConnectsAgain) {
  introduce();
  worker2.transport->send(1, parts_with({"invalid"}), false);
  next(worker1, worker2);
  worker1.transport->send(2, parts_with({"hello too"}), true);
  next(worker2, worker1);
  worker1.transport->reject(2, "it is invalid");
  const auto events = run_until([](const auto& all) {
    const auto has = [&all](int id, Kind kind) {
      const auto of = all.find(id);
      return of != all.end() && std::any_of(of->second.begin(), of->second.end(),
                                            [kind](const Event& event) { return event.kind == kind; });
    };
    return has(1, Kind::kFound) && has(2, Kind::kFound);
  });
  EXPECT_EQ(events.at(1)[0].kind, Kind::kLost);
  EXPECT_EQ(events.at(1)[0].reason, "rejected: it is invalid");
  EXPECT_EQ(events.at(2)[0].kind, Kind::kLost);
  EXPECT_EQ(events.at(2)[0].reason, "it has closed the connection: it is invalid");
  exchange();
}

TEST_F(LinksTest, ALongReasonIsCutBetweenTwoCharacters) {
  introduce();
  exchange();
  std::string reason;
  for (int i = 0; i < 300; ++i) {
    reason += "\u20ac";  // the euro sign, which has three bytes
  }
  worker1.transport->reject(2, reason);
  const std::string begin = "it has closed the connection: ";
  const size_t left = wire::kLongestReason - begin.size();
  ASSERT_NE(left % 3, 0U);
  const auto events = run_until([](const auto& all) { return all.count(2) != 0; });
  EXPECT_EQ(events.at(2)[0].reason, begin + reason.substr(0, left / 3 * 3));
}

// UCX pairs the endpoints of both sides, so each side needs another one.
TEST_F(LinksTest, LargeMessagesArriveAfterOneSideHasLostTheLink) {
  introduce();
  const std::string large(2 << 20, 'x');
  const auto exchange_large = [&] {
    worker1.transport->send(2, parts_with({large}), false);
    EXPECT_TRUE(bytes_in(next(worker2, worker1).parts.at(0)) == large);
    worker2.transport->send(1, parts_with({large}), false);
    EXPECT_TRUE(bytes_in(next(worker1, worker2).parts.at(0)) == large);
  };
  exchange_large();
  Credentials changed = credentials(1, 2);
  changed.identity = "another";  // which is not checked, because there are no certificates
  worker1.transport->learn_address(2, worker2.transport->address(), changed);
  const auto events = run_until([](const auto& all) {
    return all.count(1) != 0 && all.count(2) != 0 && all.at(1).size() + all.at(2).size() == 4;
  });
  for (const auto& [id, of_worker] : events) {
    ASSERT_EQ(of_worker.size(), 2U) << id;
    EXPECT_EQ(of_worker[0].kind, Kind::kLost) << id;
    EXPECT_EQ(of_worker[1].kind, Kind::kFound) << id;
  }
  EXPECT_EQ(events.at(2)[0].reason, "it has connected again");
  worker2.transport->send(1, parts_with({large}), false);
  EXPECT_TRUE(bytes_in(next(worker1, worker2).parts.at(0)) == large);
  exchange_large();
  for (const WorkerOf* worker : {&worker1, &worker2}) {
    EXPECT_EQ(worker->count("connections"), 2U) << worker->id;
    EXPECT_EQ(worker->count("peers_lost"), 1U) << worker->id;
  }
}

// A worker that has made no progress for a while finds greetings of several attempts. UCX pairs its own endpoint with
// that of an earlier attempt, which the peer has closed.
class LateWorker : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    hasty.learn(worker2);
    worker2.learn(hasty);
  }

  static Settings settings() {
    Settings settings = some_settings();
    if (GetParam()) {
      settings.config = {{"TLS", "tcp"}, {"NET_DEVICES", "lo"}, {"RNDV_SCHEME", "get_zcopy"}};
    }
    return settings;
  }

  static Settings hasty_settings() {
    Settings hasty = settings();
    hasty.handshake_timeout = milliseconds(100);
    return hasty;
  }

  // Runs only the hasty worker, until it has opened so many connections.
  void run_alone(uint64_t connections) {
    Event event;
    for (const auto until = limit(); hasty.count("connections") < connections && Clock::now() < until;) {
      (void)hasty.receive(event);
    }
    ASSERT_EQ(hasty.count("connections"), connections);
  }

  // The next event of this kind, while both make progress.
  static Event next(WorkerOf& waiting, WorkerOf& idle, Kind kind) {
    Event event, other;
    for (const auto until = limit(); Clock::now() < until;) {
      if (waiting.receive(event) && event.kind == kind) {
        return event;
      }
      (void)idle.receive(other);
    }
    ADD_FAILURE() << "no event";
    return {};
  }

  void exchange_large() {
    const std::string large(2 << 20, 'x');
    hasty.transport->send(2, parts_with({large}), false);
    EXPECT_TRUE(bytes_in(next(worker2, hasty, Kind::kMessage).parts.at(0)) == large);
    worker2.transport->send(1, parts_with({large}), false);
    EXPECT_TRUE(bytes_in(next(hasty, worker2, Kind::kMessage).parts.at(0)) == large);
  }

  // Neither worker has lost the other one meanwhile.
  void exchange_large_twice() {
    const uint64_t lost = hasty.count("peers_lost"), lost_by_other = worker2.count("peers_lost");
    exchange_large();
    exchange_large();
    EXPECT_EQ(hasty.count("peers_lost"), lost);
    EXPECT_EQ(worker2.count("peers_lost"), lost_by_other);
  }

  WorkerOf hasty{1, hasty_settings()}, worker2{2, settings()};
};

INSTANTIATE_TEST_SUITE_P(Transports, LateWorker, testing::Bool(),
                         [](const auto& info) { return info.param ? "Tcp" : "SharedMemory"; });

TEST_P(LateWorker, OpensAnotherEndpointForTheLastAttempt) {
  hasty.transport->send(2, parts_with({"dropped"}), false);
  run_alone(2);
  (void)next(hasty, worker2, Kind::kFound);
  EXPECT_GE(worker2.count("connections"), GetParam() ? 1U : 2U);  // over TCP only the last greeting arrives
  exchange_large_twice();
}

TEST_P(LateWorker, OpensAnotherEndpointForTheLastAttemptAfterALink) {
  exchange_large();
  Credentials changed = credentials(1, 2);
  changed.identity = "another";  // which is not checked, because there are no certificates
  hasty.transport->learn_address(2, worker2.transport->address(), changed);
  run_alone(3);
  (void)next(hasty, worker2, Kind::kFound);
  EXPECT_GE(worker2.count("connections"), GetParam() ? 2U : 3U);
  exchange_large_twice();
}

TEST_F(LinksTest, AnotherAddressOfAPeerEndsItsLink) {
  introduce();
  exchange();
  WorkerOf replacement(2);
  replacement.learn(worker1);
  worker1.learn(replacement);
  Event event = next(worker1, worker2);
  EXPECT_EQ(event.kind, Kind::kLost);
  EXPECT_EQ(event.reason, "its address has changed");
  EXPECT_EQ(next(worker1, replacement).kind, Kind::kFound);
  worker1.transport->send(2, parts_with({"to the new one"}), false);
  EXPECT_EQ(bytes_in(next(replacement, worker1).parts[0]), "to the new one");
}

TEST_F(LinksTest, OwnersAreReleasedOnceTheMessageIsSent) {
  introduce();
  exchange();
  Parts parts = parts_with({std::string(1 << 20, 'x')});
  const std::weak_ptr<void> owner = parts[0].owner;
  worker1.transport->send(2, std::move(parts), false);
  (void)next(worker2, worker1);
  Event event;
  for (const auto until = limit(); !owner.expired() && Clock::now() < until;) {
    EXPECT_FALSE(worker1.receive(event));
    EXPECT_FALSE(worker2.receive(event));
  }
  EXPECT_TRUE(owner.expired());
}

// The owner of a part. When it is released, another thread needs the transport's lock: a tensor's owner may wait for
// Python's GIL, which that thread has.
class OwnerThatNeedsTheLock {
 public:
  explicit OwnerThatNeedsTheLock(WorkerOf& worker) : worker_(worker) {}
  ~OwnerThatNeedsTheLock() {
    if (thread_.joinable()) {
      thread_.join();
    }
  }
  OwnerThatNeedsTheLock(const OwnerThatNeedsTheLock&) = delete;
  OwnerThatNeedsTheLock& operator=(const OwnerThatNeedsTheLock&) = delete;

  Parts parts() {
    Parts parts;
    parts.push_back({"x", 1, std::shared_ptr<void>(this, [this](void*) { release(); })});
    return parts;
  }
  bool is_released() const { return thread_.joinable(); }
  bool has_had_the_lock() const { return has_had_the_lock_; }

 private:
  void release() {
    std::promise<void> done;
    std::future<void> waiting = done.get_future();
    thread_ = std::thread([this, done = std::move(done)]() mutable {
      (void)worker_.transport->metrics();
      done.set_value();
    });
    has_had_the_lock_ = waiting.wait_until(limit()) == std::future_status::ready;
  }

  WorkerOf& worker_;
  std::thread thread_;
  bool has_had_the_lock_ = false;
};

TEST_F(LinksTest, AMessageForAForgottenPeerIsReleasedWithoutTheLock) {
  introduce();
  OwnerThatNeedsTheLock owner(worker1);
  Parts parts = owner.parts();
  worker1.transport->send(2, std::move(parts), false);  // worker2 does not answer the greeting
  worker1.transport->forget(2);
  EXPECT_TRUE(owner.is_released());
  EXPECT_TRUE(owner.has_had_the_lock());
}

TEST_F(LinksTest, AMessageThatIsRefusedIsReleasedWithoutTheLock) {
  Credentials limited = credentials(1, 2);
  limited.max_message = 0;
  worker1.transport->learn_address(2, worker2.transport->address(), limited);
  for (const int peer : {2, 3}) {  // its limit is too small; it is unknown
    OwnerThatNeedsTheLock owner(worker1);
    Parts parts = owner.parts();
    EXPECT_THROW(worker1.transport->send(peer, std::move(parts), false), TransportError);
    EXPECT_TRUE(owner.is_released());
    EXPECT_TRUE(owner.has_had_the_lock()) << peer;
  }
}

TEST_F(LinksTest, AMessageToAProcessThatHasEndedIsReleasedWithoutTheLock) {
  Credentials of_earlier = credentials(1, 2);
  of_earlier.process = {::getpid(), start_of(::getpid()) - 1};
  worker1.transport->learn_address(2, worker2.transport->address(), of_earlier);
  OwnerThatNeedsTheLock owner(worker1);
  Parts parts = owner.parts();
  EXPECT_THROW(worker1.transport->send(2, std::move(parts), false), TransportError);
  EXPECT_TRUE(owner.is_released());
  EXPECT_TRUE(owner.has_had_the_lock());
}

TEST_F(LinksTest, CloseReleasesMessagesThatCannotBeSent) {
  introduce();
  Parts parts = parts_with({std::string(1 << 20, 'x')});
  const std::weak_ptr<void> owner = parts[0].owner;
  worker1.transport->send(2, std::move(parts), false);  // worker2 never answers the greeting
  worker1.transport->close(0);
  EXPECT_TRUE(owner.expired());
  EXPECT_THROW(worker1.transport->send(2, parts_with({"x"}), false), TransportError);
  Event event;
  EXPECT_FALSE(worker1.transport->receive(event));
}

TEST_F(LinksTest, TheEndOfAProcessLosesItsWorkerAtOnce) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  Credentials of_child = credentials(1, 2);
  of_child.process = {child, start_of(child)};
  worker1.transport->learn_address(2, worker2.transport->address(), of_child);
  worker2.learn(worker1);
  exchange();
  ::kill(child, SIGKILL);
  const Event event = next(worker1, worker2);
  EXPECT_EQ(event.kind, Kind::kLost);
  EXPECT_EQ(event.reason, "its process has ended");
  ::waitpid(child, nullptr, 0);
}

TEST_F(LinksTest, AProcessThatHasTheIdOfAnEarlierOneIsNotItsWorker) {
  Credentials of_earlier = credentials(1, 2);
  of_earlier.process = {::getpid(), start_of(::getpid()) - 1};
  const WorkerOf earlier(2);
  worker1.transport->learn_address(2, earlier.transport->address(), of_earlier);
  try {
    worker1.transport->send(2, parts_with({"x"}), false);
    ADD_FAILURE() << "it is sent";
  } catch (const TransportError& error) {
    EXPECT_STREQ(error.what(), "worker 2 is lost: its process has ended");
  }
  // So that the agent looks for another process in its place.
  Event loss;
  ASSERT_TRUE(worker1.receive(loss));
  EXPECT_EQ(loss.kind, Kind::kLost);
  EXPECT_EQ(loss.reason, "its process has ended");
  worker1.learn(worker2);
  worker2.learn(worker1);
  EXPECT_EQ(next(worker1, worker2).kind, Kind::kFound);
}

TEST_F(LinksTest, ThreadsMaySendAndReceiveAtTheSameTime) {
  introduce();
  constexpr int kThreads = 3, kMessages = 100;
  std::atomic<int> answers{0}, requests{0};
  std::vector<std::thread> threads;
  const auto stop = [&] {
    worker1.transport->close(0);
    worker2.transport->close(0);
  };
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      Event event;
      while (worker2.transport->receive(event)) {
        if (event.kind == Kind::kMessage) {
          ++requests;
          try {
            worker2.transport->send(1, std::move(event.parts), true);
          } catch (const TransportError&) {  // it is closed
          }
        }
      }
    });
    threads.emplace_back([&] {
      Event event;
      while (worker1.transport->receive(event)) {
        answers += event.kind == Kind::kMessage ? 1 : 0;
      }
    });
  }
  std::vector<std::thread> senders;
  for (int i = 0; i < kThreads; ++i) {
    senders.emplace_back([&] {
      for (int number = 0; number < kMessages; ++number) {
        worker1.transport->send(2, parts_with({std::string(static_cast<size_t>(number) * 300, 'x')}), false);
      }
    });
  }
  for (std::thread& sender : senders) {
    sender.join();
  }
  for (const auto until = limit(); answers < kThreads * kMessages && Clock::now() < until;) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(requests, kThreads * kMessages);
  EXPECT_EQ(answers, kThreads * kMessages);
  stop();
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(UcxTransport, RefusesALimitThatNoMessageCanHave) {
  Settings settings = some_settings();
  for (const uint64_t most : {uint64_t{0}, (uint64_t{1} << 61) + 1}) {
    settings.max_message = most;
    EXPECT_THROW(UcxTransport(settings, {}, {}), TransportError);
  }
}

}  // namespace
}  // namespace rpc_backends::ucx
