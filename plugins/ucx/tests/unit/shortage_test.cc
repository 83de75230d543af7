// Shortage of memory and of descriptors. Memory is short for C++ only: UCX allocates with malloc().
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <new>
#include <vector>

#include "failing_new.h"
#include "links.h"
#include "silent_source.h"
#include "strangers.h"
#include "two_workers.h"

namespace rpc_backends::ucx {
namespace {

// A worker that runs out of memory may drop a greeting, so its peer must not wait long for the answer.
Settings hasty_settings() {
  Settings settings = some_settings();
  settings.handshake_timeout = std::chrono::milliseconds(200);
  return settings;
}

class ShortageTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { capture_log(false); }

  // Runs `work` while allocation `number` fails. Returns whether it came to that allocation.
  template <typename Work>
  static bool fails(int number, const Work& work) {
    fail_allocation(number);
    try {
      work();
    } catch (const std::bad_alloc&) {
    } catch (const TransportError&) {
    }
    return fail_allocation(0) == 0;
  }

  // Sends from one worker to the other until a message arrives: their link may have ended.
  static void expect_message(WorkerOf& from, WorkerOf& to) {
    static int number = 0;
    const std::string text = "message " + std::to_string(++number);
    bool is_sent = false;
    for (const auto until = limit(); Clock::now() < until;) {
      if (!is_sent) {
        try {
          from.transport->send(to.id, parts_with({text}), false);
          is_sent = true;
        } catch (const TransportError&) {  // the peer is lost, and not found again yet
        }
      }
      Event event;
      if (from.receive(event) && event.kind == Event::Kind::kLost) {
        is_sent = false;
      }
      if (to.receive(event) && event.kind == Event::Kind::kMessage && bytes_in(event.parts[0]) == text) {
        return;
      }
    }
    FAIL() << text << " has not arrived";
  }

  static void introduce(WorkerOf& worker, WorkerOf& peer) {
    worker.learn(peer);
    peer.learn(worker);
    expect_both_ways(worker, peer);
  }

  static void expect_both_ways(WorkerOf& worker, WorkerOf& peer) {
    expect_message(worker, peer);
    expect_message(peer, worker);
  }

  void introduce() { introduce(worker1, worker2); }
  void expect_both_ways() { expect_both_ways(worker1, worker2); }

  // Receives until there is an event of this kind. While it does, allocation `number` fails. Returns whether it came to
  // that allocation.
  static bool expect_event(WorkerOf& worker, Event::Kind kind, int number = 0, const std::function<void()>& peer = {}) {
    bool has_come = false;
    const auto wait = [&] {
      Event event;
      for (const auto until = Clock::now() + std::chrono::seconds(10); !has_come && Clock::now() < until;) {
        if (peer) {
          const int left = fail_allocation(0);  // the peer does not run out of memory
          peer();
          fail_allocation(left);
        }
        has_come = worker.receive(event) && event.kind == kind;
      }
    };
    const bool has_failed = fails(number, wait);
    wait();
    EXPECT_TRUE(has_come) << "allocation " << number;
    return has_failed;
  }

  static Parts some_parts() { return parts_with({"small", std::string(100000, 'x')}); }

  WorkerOf worker1{1, hasty_settings()}, worker2{2, hasty_settings()};
};

TEST_F(ShortageTest, ASendThatRunsOutOfMemoryLeavesTheLinkUsable) {
  introduce();
  int number = 1;
  for (bool has_failed = true; has_failed; ++number) {
    Parts parts = some_parts();
    has_failed = fails(number, [&] { worker1.transport->send(2, std::move(parts), false); });
    expect_both_ways();
  }
  EXPECT_GT(number, 3);
}

TEST_F(ShortageTest, AReceiverThatRunsOutOfMemoryConnectsAgain) {
  introduce();
  for (int number = 1; number <= 40; ++number) {
    try {
      worker1.transport->send(2, some_parts(), false);
    } catch (const TransportError&) {  // lost because of an earlier failure
    }
    fails(number, [&] {
      Event event;
      for (int i = 0; i < 20; ++i) {
        (void)worker2.receive(event);
      }
    });
    expect_both_ways();
  }
}

TEST_F(ShortageTest, AFirstMessageThatRunsOutOfMemoryIsFollowedByALink) {
  for (int number = 1; number <= 20; ++number) {
    WorkerOf caller(1, hasty_settings()), callee(2, hasty_settings());
    caller.learn(callee);
    callee.learn(caller);
    Parts parts = some_parts();
    fails(number, [&] { caller.transport->send(2, std::move(parts), false); });
    expect_message(caller, callee);
    expect_message(callee, caller);
  }
}

TEST_F(ShortageTest, APeerIsKnownOnceItIsLearnedAgain) {
  int number = 1;
  for (bool has_failed = true; has_failed; ++number) {
    WorkerOf caller(1, hasty_settings()), callee(2, hasty_settings());
    caller.learn(callee);
    const std::string address = caller.transport->address();
    const Credentials of_caller = credentials(2, 1);
    has_failed = fails(number, [&] { callee.transport->learn_address(1, address, of_caller); });
    callee.transport->learn_address(1, address, of_caller);
    expect_message(caller, callee);  // the caller's greeting comes first
  }
  EXPECT_GT(number, 3);
}

TEST_F(ShortageTest, APeerKeepsItsProcessIfAnotherOneCannotBeLearned) {
  int number = 1;
  for (bool has_failed = true; has_failed; ++number) {
    WorkerOf caller(1, hasty_settings()), callee(2, hasty_settings());
    caller.learn(callee);
    callee.learn(caller);
    const std::string address = caller.transport->address();
    Credentials of_other = credentials(2, 1);
    of_other.their_proof[0] ^= 1;
    has_failed = fails(number, [&] { callee.transport->learn_address(1, address, of_other); });
    callee.learn(caller);
    expect_message(caller, callee);
  }
  EXPECT_GT(number, 3);
}

TEST_F(ShortageTest, NothingIsSentToAPeerThatCouldNotBeLearned) {
  int number = 1;
  for (bool has_failed = true; has_failed; ++number) {
    WorkerOf caller(1, hasty_settings()), callee(2, hasty_settings());
    const std::string address = callee.transport->address();
    const Credentials of_callee = credentials(1, 2);
    has_failed = fails(number, [&] { caller.transport->learn_address(2, address, of_callee); });
    if (has_failed) {
      try {
        caller.transport->send(2, parts_with({"too early"}), false);
      } catch (const TransportError& error) {  // unless only what comes after it has failed
        EXPECT_STREQ(error.what(), "worker 2 is not known to this worker");
      }
      caller.transport->learn_address(2, address, of_callee);
    }
    callee.learn(caller);
    expect_message(caller, callee);
  }
  EXPECT_GT(number, 3);
}

TEST_F(ShortageTest, APeerThatHasClosedIsLost) {
  int number = 1;
  for (bool has_failed = true; has_failed && !HasFailure(); ++number) {
    WorkerOf waiting(1, hasty_settings()), closing(2, hasty_settings());
    introduce(waiting, closing);
    closing.transport->close(1);
    has_failed = expect_event(waiting, Event::Kind::kLost, number);
  }
  EXPECT_GT(number, 3);
}

TEST_F(ShortageTest, ATransportCloses) {
  int number = 1;
  for (bool has_failed = true; has_failed && !HasFailure(); ++number) {
    WorkerOf closing(1, hasty_settings()), peer(2, hasty_settings());
    introduce(closing, peer);
    has_failed = fails(number, [&] { EXPECT_NO_THROW(closing.transport->close(0)) << "allocation " << number; });
  }
  EXPECT_GT(number, 3);
}

// A process on this host that only waits.
class Child {
 public:
  Child() : pid_(::fork()) {
    if (pid_ == 0) {
      ::pause();
      ::_exit(0);
    }
  }
  ~Child() { kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void kill() {
    if (pid_ != 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      pid_ = 0;
    }
  }

  // Makes it the process of a peer.
  void learn_as(WorkerOf& worker, const WorkerOf& peer) const {
    Credentials watched = credentials(worker.id, peer.id);
    watched.process = {pid_, start_of(pid_)};
    worker.transport->learn_address(peer.id, peer.transport->address(), watched);
  }

 private:
  pid_t pid_;
};

TEST_F(ShortageTest, APeerWhoseProcessHasEndedIsLost) {
  int number = 1;
  for (bool has_failed = true; has_failed && !HasFailure(); ++number) {
    WorkerOf watching(1, hasty_settings()), peer(2, hasty_settings());
    Child child;
    child.learn_as(watching, peer);
    peer.learn(watching);
    expect_both_ways(watching, peer);
    child.kill();
    has_failed = expect_event(watching, Event::Kind::kLost, number);
  }
  EXPECT_GT(number, 3);
}

TEST_F(ShortageTest, ARejectedPeerIsLost) {
  introduce();
  int number = 1;
  for (bool has_failed = true; has_failed && !HasFailure(); ++number) {
    const std::string reason = "it has sent something that is invalid";
    SCOPED_TRACE(number);
    has_failed = fails(number, [&] { worker1.transport->reject(2, reason); });
    expect_event(worker1, Event::Kind::kLost);
    expect_both_ways();
  }
  EXPECT_GT(number, 3);
}

TEST_F(ShortageTest, AForgottenPeerIsUnknown) {
  int number = 1;
  for (bool has_failed = true; has_failed && !HasFailure(); ++number) {
    WorkerOf forgetting(1, hasty_settings()), peer(2, hasty_settings());
    forgetting.learn(peer);
    forgetting.transport->send(2, some_parts(), false);  // it waits for the peer's answer to the greeting
    has_failed = fails(number, [&] { forgetting.transport->forget(2); });
    EXPECT_THROW(forgetting.transport->send(2, some_parts(), false), TransportError) << "allocation " << number;
  }
  EXPECT_GT(number, 3);
}

TEST_F(ShortageTest, AGreetingIsKeptOnlyForItsLookup) {
  SilentSource source;
  Counters counters;
  Inbox inbox(source, std::chrono::microseconds(10), counters);
  CallbackThread callback_thread("test", [](const std::string&, double) { return std::optional<int>(); }, {});
  Strangers strangers(callback_thread, inbox, counters);
  const std::string proof(sizeof(wire::Proof), 'p');
  const Greeted greeting{{}, std::string(100, 'i')};
  int number = 1;
  for (bool has_failed = true; has_failed; ++number) {
    has_failed = fails(number, [&] { strangers.look_up(proof, greeting); });
    EXPECT_EQ(strangers.take(proof).has_value(), !has_failed) << "allocation " << number;
  }
  EXPECT_GT(number, 3);
  callback_thread.stop();
}

TEST_F(ShortageTest, AStrangerIsRefusedAlthoughMemoryIsShortAfterItsLookup) {
  const auto use_up_memory = [](const std::string&, double) {
    fail_allocation(1);
    return std::optional<int>();
  };
  WorkerOf stranger(1, hasty_settings()), callee(2, hasty_settings(), use_up_memory);
  stranger.learn(callee);
  stranger.transport->send(2, some_parts(), false);
  Event event;
  for (const auto until = limit(); callee.count("refused") == 0 && Clock::now() < until;) {
    (void)stranger.receive(event);
    (void)callee.receive(event);
  }
  EXPECT_GT(callee.count("refused"), 0U);
}

TEST_F(ShortageTest, AMessageBehindTheFirstGreetingArrivesOrIsLost) {
  int number = 1;
  for (bool has_failed = true; has_failed && !HasFailure(); ++number) {
    WorkerOf caller(1, hasty_settings()), callee(2, hasty_settings());
    caller.learn(callee);
    callee.learn(caller);
    caller.transport->send(2, parts_with({"first"}), false);
    Event event;
    for (const auto until = limit(); callee.count("connections") == 0 && Clock::now() < until;) {
      EXPECT_FALSE(callee.receive(event));
    }
    bool is_over = false;
    const auto receive = [&] { is_over = (caller.receive(event) && event.kind == Event::Kind::kLost) || is_over; };
    has_failed = fails(number, [&] {
      for (int i = 0; i < 20; ++i) {
        receive();
      }
    });
    for (const auto until = Clock::now() + std::chrono::seconds(10); !is_over && Clock::now() < until;) {
      is_over = callee.receive(event) && event.kind == Event::Kind::kMessage;
      receive();
    }
    EXPECT_TRUE(is_over) << "allocation " << number;
  }
  EXPECT_GT(number, 3);
}

// The links of a worker, which make progress only when the test says so.
struct BareLinks {
  explicit BareLinks(int self) { links.start(self); }
  ~BareLinks() { worker.reset(); }  // as the transport does
  BareLinks(const BareLinks&) = delete;
  BareLinks& operator=(const BareLinks&) = delete;

  void send(int peer, const char* text) { links.send(peer, links.prepare(parts_with({text}))); }

  const Settings settings = hasty_settings();
  Context context{settings.config};
  SilentSource source;
  Counters counters;
  Inbox inbox{source, std::chrono::microseconds(10), counters};
  Releaser releaser{"test", 0};
  Timers timers;
  DeviceMemory device_memory{context, {}};
  CallbackThread callback_thread{"test", {}, {}};
  std::unique_ptr<Worker> worker = std::make_unique<Worker>(context);
  Links links{{settings, counters, inbox, callback_thread, releaser, timers, device_memory, nullptr}, *worker};
};

TEST_F(ShortageTest, NoMessageOvertakesOneThatWaitsForTheAnswerToTheGreeting) {
  int number = 1;
  for (bool has_failed = true; has_failed && !HasFailure(); ++number) {
    SCOPED_TRACE(number);
    BareLinks caller(1);
    WorkerOf callee(2, hasty_settings());
    caller.links.learn(2, callee.transport->address(), credentials(1, 2));
    callee.transport->learn_address(1, caller.worker->address(), credentials(2, 1));
    caller.send(2, "first");
    Event event;
    for (const auto until = limit(); callee.count("connections") == 0 && Clock::now() < until;) {
      EXPECT_FALSE(callee.receive(event));
    }
    has_failed = false;
    fail_allocation(number);
    for (int i = 0; i < 20 && !has_failed; ++i) {
      try {
        (void)caller.links.progress();
      } catch (const std::bad_alloc&) {
      }
      const int left = fail_allocation(0);
      has_failed = left == 0;
      fail_allocation(left);
    }
    fail_allocation(0);
    try {
      caller.send(2, "second");
    } catch (const TransportError&) {  // the peer is lost
    }
    for (const auto until = limit(); caller.counters.peers_lost == 0 && Clock::now() < until;) {
      if (callee.receive(event)) {
        EXPECT_TRUE(event.kind != Event::Kind::kMessage || bytes_in(event.parts.at(0)) == "first");
        break;
      }
      (void)caller.links.progress();
    }
  }
  EXPECT_GT(number, 3);
}

TEST_F(ShortageTest, ALostPeerIsFoundAgain) {
  introduce();
  int number = 1;
  for (bool has_failed = true; has_failed && !HasFailure(); ++number) {
    worker2.transport->reject(1, "it is invalid");
    has_failed = expect_event(worker1, Event::Kind::kFound, number, [this] {
      Event event;
      (void)worker2.receive(event);
    });
    expect_both_ways();
  }
  EXPECT_GT(number, 10);
}

TEST_F(ShortageTest, APeerThatDoesNotAnswerIsTriedAgain) {
  Settings settings = some_settings();
  settings.handshake_timeout = std::chrono::milliseconds(50);
  int number = 1;
  for (bool has_failed = true; has_failed && !HasFailure(); ++number) {
    WorkerOf caller(1, settings), callee(2, settings);
    caller.learn(callee);
    caller.transport->send(2, parts_with({"first"}), false);
    Event event;
    const auto until = Clock::now() + milliseconds(400);
    const auto has_tried_again = [&] { return caller.count("connections") > 1 || Clock::now() > until; };
    has_failed = fails(number, [&] {
      while (!caller.receive(event)) {
      }
      // The number of connections is text, so it needs memory itself.
      for (bool is_over = false; !is_over;) {
        (void)caller.receive(event);
        const int left = fail_allocation(0);
        is_over = has_tried_again();
        fail_allocation(left);
      }
    });
    callee.learn(caller);
    expect_event(caller, Event::Kind::kFound, 0, [&] { (void)callee.receive(event); });
  }
  EXPECT_GT(number, 5);
}

TEST_F(ShortageTest, TheEndOfAProcessIsNoticedIfWatchingItHasFailedOnce) {
  int number = 1;
  for (bool has_failed = true; has_failed && !HasFailure(); ++number) {
    WorkerOf watching(1, hasty_settings()), peer(2, hasty_settings());
    Child child;
    child.learn_as(watching, peer);
    peer.learn(watching);
    Parts parts = parts_with({"first"});
    has_failed = fails(number, [&] { watching.transport->send(2, std::move(parts), false); });
    expect_message(watching, peer);
    child.kill();
    expect_event(watching, Event::Kind::kLost);
  }
  EXPECT_GT(number, 3);
}

// Leaves this process no descriptor while it lives.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = std::min<rlim_t>(before_.rlim_cur, 1024);
    ::setrlimit(RLIMIT_NOFILE, &few);
    for (int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC); fd != -1; fd = ::dup(fd)) {
      taken_.push_back(fd);
    }
  }
  ~NoDescriptors() {
    for (const int fd : taken_) {
      ::close(fd);
    }
    ::setrlimit(RLIMIT_NOFILE, &before_);
  }

 private:
  rlimit before_{};
  std::vector<int> taken_;
};

TEST_F(ShortageTest, ATransportWithoutDescriptorsIsRefused) {
  const NoDescriptors none;
  EXPECT_THROW(UcxTransport(some_settings(), {}, {}), TransportError);
}

TEST_F(ShortageTest, APeerIsReachedOnceThereAreDescriptorsAgain) {
  Credentials watched = credentials(1, 2);
  watched.process = {::getpid(), start_of(::getpid())};
  worker1.transport->learn_address(2, worker2.transport->address(), watched);
  worker2.learn(worker1);
  {
    const NoDescriptors none;
    try {
      worker1.transport->send(2, parts_with({"without a descriptor"}), false);
    } catch (const TransportError&) {  // of UCX, if it needs one
    }
  }
  expect_both_ways();
}

TEST_F(ShortageTest, AProcessIsWatchedOnceThereAreDescriptorsAgain) {
  Child child;
  child.learn_as(worker1, worker2);
  worker2.learn(worker1);
  {
    const NoDescriptors none;
    EXPECT_THROW(worker1.transport->send(2, parts_with({"without a descriptor"}), false), TransportError);
  }
  expect_both_ways();
  child.kill();
  expect_event(worker1, Event::Kind::kLost);
}

}  // namespace
}  // namespace rpc_backends::ucx
