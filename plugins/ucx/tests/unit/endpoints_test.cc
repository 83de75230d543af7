// What leaves this worker slowly: a peer that makes no progress takes nothing.
#include "endpoints.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "failing_new.h"
#include "link_table.h"
#include "outbox.h"
#include "silent_source.h"
#include "teardown.h"
#include "two_workers.h"

namespace rpc_backends::ucx {
namespace {

class ASlowPeer : public testing::Test {
 protected:
  static void SetUpTestSuite() { capture_log(false); }

  ASlowPeer() { endpoints.open(2, peer.address(), "no endpoint", endpoint); }

  // Lets UCX work, but not the peer, until `is_over`.
  template <typename IsOver>
  void run_until(const IsOver& is_over) {
    for (const auto until = limit(); !is_over() && Clock::now() < until;) {
      ucp_worker_progress(worker.get());
      endpoints.close_due(Clock::time_point::min());
    }
    EXPECT_TRUE(is_over());
  }

  // Sends a message that the peer must fetch.
  void post(uint64_t number) {
    auto message = std::make_unique<Outgoing>(parts_with({std::string(100000, 'x')}), 1000);
    EXPECT_EQ(outbox.post(endpoint, 2, wire::Token{1, 2}, number, std::move(message)), UCS_OK);
  }

  const Settings settings = [] {
    Settings made = some_settings();
    made.rendezvous = 1;
    return made;
  }();
  Context context{settings.config};
  Worker worker{context}, peer{context};
  SilentSource source;
  Counters counters;
  Inbox inbox{source, std::chrono::microseconds(10), counters};
  Releaser releaser{"test", 0};
  Timers timers;
  DeviceMemory device_memory{context, {}};
  std::vector<int> closed;
  Endpoints endpoints{worker, inbox, [](ucp_ep_h, ucs_status_t) {}, [this](int id) { closed.push_back(id); }};
  CallbackThread callback_thread{"test", {}, {}};
  const Services services{settings, counters, inbox, callback_thread, releaser, timers, device_memory, nullptr};
  Outbox outbox{services};
  ucp_ep_h endpoint = nullptr;
};

TEST_F(ASlowPeer, TheFirstMessageThatIsLeavingIsKnown) {
  EXPECT_EQ(outbox.first_leaving(2, 4), 4U);
  post(4);
  post(5);
  post(wire::kFirstLarge + 7);
  EXPECT_EQ(outbox.first_leaving(2, 6), 4U);
  EXPECT_EQ(outbox.first_leaving(2, wire::kFirstLarge + 8), wire::kFirstLarge + 7);
  EXPECT_EQ(outbox.first_leaving(3, 6), 6U);
  endpoints.close(endpoint);
  run_until([this] { return !outbox.is_leaving() && !endpoints.is_closing(); });
  EXPECT_EQ(outbox.first_leaving(2, 6), 6U);
}

ucs_status_t keep_goodbye(void* kept, const void* header, size_t /*header_size*/, void* /*data*/, size_t /*size*/,
                          const ucp_am_recv_param_t* /*param*/) {
  wire::Goodbye& goodbye = static_cast<std::optional<wire::Goodbye>*>(kept)->emplace();
  std::memcpy(&goodbye, header, sizeof goodbye);
  return UCS_OK;
}

TEST_F(ASlowPeer, AGoodbyeNamesTheFirstMessageOfEachKindThatHasNotLeft) {
  std::optional<wire::Goodbye> goodbye;
  peer.handle(wire::Kind::kGoodbye, &keep_goodbye, &goodbye);
  LinkTable table{settings.max_message};
  Teardown teardown{services, table, endpoints, outbox};
  Link& link = table.add(2);
  link.endpoint = endpoint;
  link.token = wire::Token{1, 2};
  post(4);
  post(wire::kFirstLarge + 7);
  link.next_small = 6;
  link.next_large = wire::kFirstLarge + 9;
  teardown.part(link, true, "why");
  run_until([&] {
    ucp_worker_progress(peer.get());
    return goodbye.has_value();
  });
  EXPECT_EQ(goodbye->complete, 4U);
  EXPECT_EQ(goodbye->complete_large, 7U);
  EXPECT_EQ(goodbye->comes_back, 1U);
  EXPECT_EQ(goodbye->copies, 1U);
  EXPECT_TRUE(goodbye->token == (wire::Token{1, 2}));
  run_until([this] {
    ucp_worker_progress(peer.get());
    return !outbox.is_leaving() && !endpoints.is_flushing() && !endpoints.is_closing();
  });
}

TEST_F(ASlowPeer, AnEndpointIsClosedAtItsTimeAlthoughMessagesHaveNotLeft) {
  post(0);
  const auto until = Clock::now() + std::chrono::hours(1);
  endpoints.close_flushed(endpoint, until);
  EXPECT_EQ(endpoints.peer_of(endpoint), -1);
  endpoints.close_due(until - std::chrono::milliseconds(1));
  EXPECT_TRUE(endpoints.is_flushing());
  EXPECT_TRUE(closed.empty());
  endpoints.close_due(until);
  EXPECT_EQ(closed, std::vector<int>{2});
  endpoints.close_due(until);
  EXPECT_EQ(closed.size(), 1U);
  run_until([this] { return !endpoints.is_flushing() && !endpoints.is_closing() && !outbox.is_leaving(); });
}

// UCX counts an endpoint from its creation on.
TEST_F(ASlowPeer, AnEndpointThatIsOpenIsKnownAlthoughMemoryIsShort) {
  const std::string address = peer.address();
  int number = 1;
  for (bool has_failed = true; has_failed; ++number) {
    ucp_ep_h made = nullptr;
    fail_allocation(number);
    try {
      endpoints.open(3, address, "no endpoint", made);
    } catch (const std::bad_alloc&) {
    }
    has_failed = fail_allocation(0) == 0;
    EXPECT_EQ(endpoints.peer_of(made), made == nullptr ? -1 : 3) << "allocation " << number;
    EXPECT_EQ(made == nullptr, has_failed) << "allocation " << number;
    if (made != nullptr) {
      endpoints.close(made);
    }
  }
  EXPECT_GT(number, 2);
}

// The outbox is used with the transport's lock, and whatever owns a part may need other locks to release it.
TEST_F(ASlowPeer, AMessageThatHasLeftIsKeptAlthoughMemoryIsShort) {
  const Settings eager = some_settings();  // a small message leaves at once
  const Services eager_services{eager, counters, inbox, callback_thread, releaser, timers, device_memory, nullptr};
  Outbox eager_outbox{eager_services};
  int number = 1;
  for (bool has_failed = true; has_failed; ++number) {
    Parts parts = parts_with({"small"});
    const std::weak_ptr<void> owner = parts[0].owner;
    auto message = std::make_unique<Outgoing>(std::move(parts), 1000);
    fail_allocation(number);
    try {
      eager_outbox.post(endpoint, 2, wire::Token{1, 2}, static_cast<uint64_t>(number), std::move(message));
    } catch (const std::bad_alloc&) {
    }
    has_failed = fail_allocation(0) == 0;
    EXPECT_FALSE(owner.expired()) << "allocation " << number;
  }
  EXPECT_GT(number, 3);
}

// UCX completes a flush in several steps, and would take the rest of them after the endpoint is freed. Whether it does
// depends on the order of addresses, so there are several attempts.
TEST_F(ASlowPeer, AnEndpointIsClosedAtAnyStepOfItsFlush) {
  endpoints.close(endpoint);
  const auto until = Clock::now() + std::chrono::hours(1);
  for (int steps = 0; steps < 10; ++steps) {
    for (int attempt = 0; attempt < 20; ++attempt) {
      endpoints.open(2, peer.address(), "no endpoint", endpoint);
      post(0);
      endpoints.close_flushed(endpoint, until);
      for (int step = 0; step < steps; ++step) {
        ucp_worker_progress(peer.get());
        ucp_worker_progress(worker.get());
      }
      endpoints.close_due(until);
      run_until([this] { return !endpoints.is_flushing() && !endpoints.is_closing() && !outbox.is_leaving(); });
    }
  }
}

}  // namespace
}  // namespace rpc_backends::ucx
