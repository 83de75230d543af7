// Admission: how many connections may wait for their authentication.
#include "pending_connections.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>

#include <cstring>

namespace rpc_backends::zeromq {
namespace {

constexpr size_t kNoLimit = 1000;

// A listening socket, and both ends of connections to it.
class PendingConnectionsTest : public testing::Test {
 protected:
  PendingConnectionsTest() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener.get(), 100), 0);
    pending.listening(listener.get());
  }

  // Returns the descriptor of the accepted end.
  int connect() {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
    clients.push_back(std::make_unique<Fd>(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)));
    EXPECT_EQ(::connect(clients.back()->get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    accepted.push_back(std::make_unique<Fd>(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)));
    return accepted.back()->get();
  }

  // Whether the other end of connection `number` has been told that it ended.
  bool has_ended(size_t number) {
    pollfd waiting{clients[number]->get(), POLLIN, 0};
    return ::poll(&waiting, 1, 0) == 1;
  }

  PendingConnections pending;
  Fd listener{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::vector<std::unique_ptr<Fd>> clients, accepted;
};

TEST_F(PendingConnectionsTest, EndsNoneBelowTheLimit) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(pending.accepted(connect(), 3), 0U);
  }
  EXPECT_FALSE(has_ended(0));
}

TEST_F(PendingConnectionsTest, EndsTheOldestBeyondTheLimit) {
  for (int i = 0; i < 3; ++i) {
    pending.accepted(connect(), 3);
  }
  EXPECT_EQ(pending.accepted(connect(), 3), 1U);
  EXPECT_TRUE(has_ended(0));
  EXPECT_FALSE(has_ended(1));
  EXPECT_FALSE(has_ended(3));
}

TEST_F(PendingConnectionsTest, AuthenticatedConnectionsDoNotCount) {
  const int first = connect();
  pending.accepted(first, 1);
  pending.authenticated(first);
  EXPECT_EQ(pending.accepted(connect(), 1), 0U);
  EXPECT_FALSE(has_ended(0));
  EXPECT_EQ(pending.accepted(connect(), 1), 1U);
  EXPECT_FALSE(has_ended(0));
  EXPECT_TRUE(has_ended(1));
}

TEST_F(PendingConnectionsTest, AuthenticationMayBeReportedBeforeTheConnection) {
  const int first = connect();
  pending.authenticated(first);
  pending.accepted(first, 1);
  EXPECT_EQ(pending.accepted(connect(), 1), 0U);
  EXPECT_FALSE(has_ended(0));
}

TEST_F(PendingConnectionsTest, ConnectionsThatHaveEndedDoNotCount) {
  const int first = connect();
  pending.accepted(first, 1);
  pending.disconnected(first);
  EXPECT_EQ(pending.accepted(connect(), 1), 0U);
}

TEST_F(PendingConnectionsTest, ADescriptorOfAnotherFileIsLeftAlone) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const Fd near(ends[0]), far(ends[1]);
  EXPECT_EQ(pending.accepted(near.get(), 0), 0U);
  EXPECT_EQ(pending.accepted(-1, 0), 0U);
  EXPECT_EQ(pending.accepted(connect(), 1), 0U);
  pollfd waiting{far.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&waiting, 1, 0), 0);
}

TEST_F(PendingConnectionsTest, AFailedAcceptEndsHalfOfThemOncePerPause) {
  for (int i = 0; i < 4; ++i) {
    pending.accepted(connect(), kNoLimit);
  }
  EXPECT_EQ(pending.accept_failed(), 2U);
  EXPECT_TRUE(has_ended(0));
  EXPECT_TRUE(has_ended(1));
  EXPECT_FALSE(has_ended(2));
}

TEST_F(PendingConnectionsTest, AFailedAcceptTurnsAwayWhatWaitsIfNoneIsPending) {
  const int kept = connect();
  pending.accepted(kept, kNoLimit);
  pending.authenticated(kept);
  sockaddr_in address{};
  socklen_t size = sizeof address;
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
  const Fd waiting(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(waiting.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(pending.accept_failed(), 1U);
  EXPECT_FALSE(has_ended(0));
}

}  // namespace
}  // namespace rpc_backends::zeromq
