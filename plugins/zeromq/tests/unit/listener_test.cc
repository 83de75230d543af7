// Where a worker listens: connections that are silent, revoked, or come when memory or descriptors are short.
#include "listener.h"

#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>

#include "authority.h"
#include "endpoint.h"
#include "failing_new.h"
#include "run_posted.h"

namespace rpc_backends::zeromq {
namespace {

constexpr int kPeer = 7;
// No passing test waits that long.
constexpr std::chrono::seconds kLimit{10};

Settings some_settings() {
  Settings settings;
  settings.max_message = uint64_t{8} << 20;
  settings.heartbeat = 0.02;
  settings.heartbeat_timeout = 0.1;
  settings.handshake_timeout = 60;
  return settings;
}

// A worker that listens.
struct Worker {
  ~Worker() {
    loop.stop();
    writer.stop();
    listener->close(Clock::now());
  }

  void listen(const std::string& where = "tcp://127.0.0.1:*") {
    const Stream::Services services{settings, inbox, loop, writer, releaser, counters, tls.get()};
    listener = std::make_shared<Listener>(Acceptor::Services{services, callback_thread, keys, proofs}, [](int) {});
    endpoint = Endpoint(listener->bind(where));
    run_posted(loop);
  }

  void fail_allocation_of_loop(int number) {
    loop.post([number] { fail_allocation(number); });
    run_posted(loop);
  }

  std::unique_ptr<Fd> connect() {
    std::unique_ptr<Fd> caller = endpoint.open_socket(60);
    connect(*caller);
    return caller;
  }

  void connect(const Fd& caller) {
    if (::connect(caller.get(), endpoint.address(), endpoint.address_size()) != 0) {
      EXPECT_EQ(errno, EINPROGRESS);
      pollfd connected{caller.get(), POLLOUT, 0};
      EXPECT_EQ(::poll(&connected, 1, 10'000), 1);
    }
  }

  static Greeting greeting() {
    static uint64_t time = 0;
    Greeting greeting{};
    std::copy_n(kForm, sizeof kForm, greeting.form);
    greeting.worker = kPeer;
    greeting.time = ++time;
    return greeting;
  }

  // Whether the greeting is answered.
  static bool is_admitted(const Fd& caller) {
    const Greeting sent = greeting();
    EXPECT_EQ(::send(caller.get(), &sent, sizeof sent, MSG_NOSIGNAL), ssize_t{sizeof sent});
    Answer answer{};
    pollfd arrived{caller.get(), POLLIN, 0};
    return ::poll(&arrived, 1, 10'000) == 1 &&
           ::recv(caller.get(), &answer, sizeof answer, 0) == ssize_t{sizeof answer} && answer.is_admitted == 1;
  }

  // Whether the worker ends the connection.
  static bool is_ended(const Fd& caller) {
    char byte = 0;
    for (const auto until = Clock::now() + kLimit; Clock::now() < until;) {
      const ssize_t got = ::recv(caller.get(), &byte, 1, 0);
      if (got == 0 || (got == -1 && errno != EAGAIN)) {
        return true;
      }
      pollfd arrived{caller.get(), POLLIN, 0};
      ::poll(&arrived, 1, 10);
    }
    return false;
  }

  Settings settings = some_settings();
  Counters counters;
  Inbox inbox;
  EventLoop loop{"test-events"}, writer{"test-writes"};
  Releaser releaser{"test-release", 0};
  CallbackThread callback_thread{"test-calls", nullptr, nullptr};
  Directory keys, proofs;
  std::unique_ptr<TlsContext> tls;
  std::shared_ptr<Listener> listener;
  Endpoint endpoint;
};

// --- shortage of memory -----------------------------------------------------------------------------

TEST(Listener, SilentPeersAreLostAlthoughMemoryWasShort) {
  Worker worker;
  worker.listen();
  for (int number = 1; number <= 25; ++number) {
    const auto caller = worker.connect();
    ASSERT_TRUE(worker.is_admitted(*caller));
    worker.fail_allocation_of_loop(number);
    ASSERT_TRUE(worker.is_ended(*caller)) << "allocation " << number;
    worker.fail_allocation_of_loop(0);
  }
}

TEST(Listener, UnfinishedHandshakesExpireAlthoughMemoryWasShort) {
  Worker worker;
  worker.settings.handshake_timeout = 0.1;
  worker.listen();
  for (int number = 1; number <= 15; ++number) {
    worker.fail_allocation_of_loop(number);
    ASSERT_TRUE(worker.is_ended(*worker.connect())) << "allocation " << number;
    worker.fail_allocation_of_loop(0);
  }
}

// Takes all descriptors but those that are open.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const int lowest = ::dup(STDIN_FILENO);
    ::close(lowest);
    rlimit none = before_;
    none.rlim_cur = static_cast<rlim_t>(lowest);
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

TEST(Endpoint, NoDescriptorIsLeftOpenIfMemoryIsShort) {
  const auto before = open_descriptors();
  std::string bound;
  const auto listening = Endpoint::listen("tcp://127.0.0.1:*", bound);
  const Endpoint endpoint(bound);
  int number = 1;
  for (bool has_failed = true; has_failed; ++number) {
    const std::string where = "tcp://127.0.0.1:*";
    std::string other;
    int error = 0;
    const auto fails = [number](const auto& work) {
      fail_allocation(number);
      try {
        work();
      } catch (const std::bad_alloc&) {
      }
      return fail_allocation(0) == 0;
    };
    const bool open_fails = fails([&] { endpoint.open_socket(60); });
    const bool probe_fails = fails([&] { endpoint.probe(error); });
    has_failed = fails([&] { Endpoint::listen(where, other); }) || open_fails || probe_fails;
    EXPECT_EQ(open_descriptors(), before + 1) << "allocation " << number;
  }
  EXPECT_GT(number, 2);
}

TEST(Listener, ConnectionsAreAcceptedAgainAlthoughMemoryWasShort) {
  for (int number = 1; number <= 10; ++number) {
    const auto before = open_descriptors();
    {
      Worker worker;
      worker.listen();
      const auto turned_away = worker.endpoint.open_socket(60);
      {
        const NoDescriptors none;
        worker.fail_allocation_of_loop(number);
        worker.connect(*turned_away);
        ASSERT_TRUE(worker.is_ended(*turned_away)) << "allocation " << number;
      }
      // The allocation may fail during the pause, or the first connection after it may be closed for it.
      bool is_admitted = false;
      for (const auto until = Clock::now() + kLimit; !is_admitted && Clock::now() < until;) {
        is_admitted = worker.is_admitted(*worker.connect());
      }
      ASSERT_TRUE(is_admitted) << "allocation " << number;
      worker.fail_allocation_of_loop(0);
      ASSERT_TRUE(worker.is_admitted(*worker.connect())) << "allocation " << number;
    }
    EXPECT_EQ(open_descriptors(), before) << "allocation " << number;
  }
}

// --- revocation -------------------------------------------------------------------------------------

TEST(Listener, ACertificateThatIsRevokedBeforeTheGreetingIsRefused) {
  const Authority authority;
  const Crypto& crypto = Crypto::get(false);
  const auto own = authority.certify({"DNS:b"});
  const TlsContext context(crypto, *authority.certify({"DNS:a"}));
  const std::string proof(kProofSize, 'p');
  for (const bool is_revoked : {false, true}) {
    Worker worker;
    worker.settings.certificates = own;
    worker.settings.public_key = key_text(crypto, "b");
    worker.settings.wants_proofs = true;
    worker.tls = std::make_unique<TlsContext>(crypto, *own);
    worker.keys.learn(kPeer, key_text(crypto, "a"));
    worker.proofs.learn(kPeer, proof);
    worker.listen("ipc://@listener_test-" + std::to_string(::getpid()));
    const auto caller = context.connecting(worker.connect(), worker.settings.public_key);
    auto state = TlsChannel::Handshake::kNeedsData;
    for (const auto until = Clock::now() + kLimit; state != TlsChannel::Handshake::kDone && Clock::now() < until;) {
      state = caller->shake_hands();
    }
    ASSERT_EQ(state, TlsChannel::Handshake::kDone);
    for (int unread = 1; unread > 0;) {
      ASSERT_EQ(::ioctl(caller->fd(), SIOCOUTQ, &unread), 0);
    }
    run_posted(worker.loop);  // so the worker, too, has finished the handshake
    if (is_revoked) {
      worker.tls->revoked().set({"a"});
      worker.loop.post([&worker] { worker.listener->end_revoked(worker.tls->revoked()); });
    }
    Greeting sent = Worker::greeting();
    set_proof(sent.proof, proof);
    const iovec place{&sent, sizeof sent};
    ASSERT_EQ(caller->write(&place, 1), ssize_t{sizeof sent});
    ASSERT_TRUE(caller->flush());
    Answer answer{};
    ssize_t got = -1;
    for (const auto until = Clock::now() + kLimit; got == -1 && Clock::now() < until;) {
      got = caller->read(&answer, sizeof answer);
    }
    ASSERT_EQ(got, ssize_t{sizeof answer});
    EXPECT_EQ(answer.is_admitted, is_revoked ? 0U : 1U);
    EXPECT_EQ(worker.counters.refused, is_revoked ? 1U : 0U);
  }
}

}  // namespace
}  // namespace rpc_backends::zeromq
