// A transport for test_lost_peers.py that sends nothing, changes the numbers of events, and reports a loss to a thread
// of the agent whose next allocations fail. Built for a test only, with nothing of torch.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "rpc_backends_agents/transport.h"

extern "C" int fail_allocation(int number);  // of tests/support/failing_new.cpp, which is loaded before

namespace {

using namespace rpc_backends;

struct FailingTransport : Transport {
  Text listen(int /*self*/, std::string_view /*name*/) override { return "nowhere"; }
  void learn(int /*peer*/, std::string_view /*name*/, std::string_view /*address*/) override {}
  void forget(int /*peer*/) override {}
  void send(int /*peer*/, Parts /*parts*/, bool /*reply*/) override {}
  void reject(int /*peer*/, std::string_view /*reason*/) override {}
  void close(double /*linger*/) override { events.close(); }

  bool receive(Event& event) override {
    fail_allocation(0);
    const bool open = events.pop(event);
    if (open && event.kind == Event::Kind::kLost) {
      fail_allocation(failing.exchange(0));
    }
    event.order += jump;
    return open;
  }

  EventQueue events;
  std::atomic<uint64_t> jump{0};    // is added to the numbers of events
  std::atomic<int> failing{0};      // which allocation of the thread that takes the next loss
  std::atomic<int> peers_found{0};  // how many times the agent has handled that a peer is found
};

FailingTransport& of(void* transport) {
  return static_cast<FailingTransport&>(**static_cast<std::shared_ptr<Transport>*>(transport));
}

}  // namespace

extern "C" {

// Returns what the capsule of a transport holds. Never freed: a test's process ends soon.
void* failing_transport_new() {
  return new std::shared_ptr<Transport>(std::make_shared<FailingTransport>());
}

const char* failing_transport_capsule_name() {
  return kTransportCapsule;
}

void failing_transport_lose(void* transport, int peer, int failing) {
  of(transport).failing = failing;
  of(transport).events.push({Event::Kind::kLost, peer, {}, std::string(100, 'x')});
}

void failing_transport_jump(void* transport, int jump) {
  of(transport).jump = static_cast<uint64_t>(jump);
}

void failing_transport_find(void* transport, int peer) {
  FailingTransport& finding = of(transport);
  Part handled;  // the agent drops it with the event
  handled.owner = std::shared_ptr<void>(nullptr, [&finding](void*) { ++finding.peers_found; });
  finding.events.push({Event::Kind::kFound, peer, {handled}, {}});
}

int failing_transport_peers_found(void* transport) {
  return of(transport).peers_found;
}
}
