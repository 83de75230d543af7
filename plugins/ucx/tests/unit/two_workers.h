// Two transports in one process, and what they send to each other.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parts.h"
#include "racing.h"
#include "ucp.h"
#include "ucx_transport.h"

namespace rpc_backends::ucx {

using Kind = Event::Kind;
using std::chrono::milliseconds;

inline constexpr ConnectionKey::Bytes kKey{1, 2, 3, 4};

inline Settings some_settings() {
  Settings settings;
  // As in settings.py.
  settings.config = {{"TLS", "posix,cma"},         {"KEEPALIVE_INTERVAL", "inf"}, {"POSIX_ERROR_HANDLING", "y"},
                     {"POSIX_USE_PROC_LINK", "y"}, {"POSIX_SHM_MIN_SIZE", "0"},   {"CMA_MEMORY_INVALIDATE", "y"},
                     {"RNDV_SCHEME", "get_zcopy"}};
  settings.max_message = uint64_t{1} << 30;
  settings.poll_time = std::chrono::microseconds(100);
  settings.handshake_timeout = std::chrono::seconds(60);
  return settings;
}

inline wire::Proof proof(int sender, int receiver) {
  wire::Proof made;
  made.fill(static_cast<char>(10 * sender + receiver + 1));
  return made;
}

inline Credentials credentials(int self, int peer) {
  Credentials made;
  made.our_proof = proof(self, peer);
  made.their_proof = proof(peer, self);
  return made;
}

struct WorkerOf {
  explicit WorkerOf(int id, const Settings& settings = some_settings(), CallbackThread::OnUnknownKey lookup = {},
                    CallbackThread::OnRefused refused = {})
      : id(id), transport(std::make_unique<UcxTransport>(settings, std::move(lookup), std::move(refused))) {
    transport->start(id, kKey);
  }

  void learn(const WorkerOf& peer) {
    transport->learn_address(peer.id, peer.transport->address(), credentials(id, peer.id));
  }

  // Makes progress for a moment.
  bool receive(Event& event, Clock::duration time = milliseconds(1)) {
    return transport->receive_until(event, Clock::now() + time) == Received::kEvent;
  }

  uint64_t count(const std::string& name) const {
    return std::stoull(std::string(transport->metrics().at("ucx." + name)));
  }

  const int id;
  std::unique_ptr<UcxTransport> transport;
};

class TwoWorkers : public testing::Test {
 protected:
  static void SetUpTestSuite() { capture_log(false); }

  void introduce() {
    worker1.learn(worker2);
    worker2.learn(worker1);
  }

  // The next event of `waiting`, while `idle` makes progress and gets none.
  static Event next(WorkerOf& waiting, WorkerOf& idle) {
    Event event, unexpected;
    for (const auto until = limit(); Clock::now() < until;) {
      if (waiting.receive(event)) {
        return event;
      }
      EXPECT_FALSE(idle.receive(unexpected)) << std::string_view(unexpected.reason);
    }
    ADD_FAILURE() << "no event";
    return {};
  }

  // Runs both until `is_over`; returns the events of each.
  template <typename IsOver>
  std::map<int, std::vector<Event>> run_until(const IsOver& is_over) {
    std::map<int, std::vector<Event>> events;
    for (const auto until = limit(); !is_over(events) && Clock::now() < until;) {
      for (WorkerOf* worker : {&worker1, &worker2}) {
        Event event;
        if (worker->transport && worker->receive(event)) {
          events[worker->id].push_back(std::move(event));
        }
      }
    }
    EXPECT_TRUE(is_over(events));
    return events;
  }

  void exchange() {
    worker1.transport->send(2, parts_with({"hello"}), false);
    EXPECT_EQ(bytes_in(next(worker2, worker1).parts[0]), "hello");
    worker2.transport->send(1, parts_with({"hello too"}), true);
    EXPECT_EQ(bytes_in(next(worker1, worker2).parts[0]), "hello too");
  }

  WorkerOf worker1{1}, worker2{2};
};

}  // namespace rpc_backends::ucx
