#include "opening.h"

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <utility>

namespace rpc_backends::ucx {

using namespace wire;

namespace {

// The time between two attempts to reach a lost peer. It doubles after each attempt.
constexpr std::chrono::milliseconds kFirstPause{50};
constexpr std::chrono::milliseconds kLongestPause{5000};
// The most endpoints that a greeting makes this worker open and close. Over a network each takes a connection, and a
// peer leaves endpoints here only if this worker was suspended, or refused its greetings.
constexpr int kMostSkipped = 1000;
constexpr size_t kMostSkippedInNetwork = 64;

}  // namespace

void Opening::start(int self) {
  if (self < 0) {
    throw TransportError("a worker id must not be negative, and this is " + std::to_string(self));
  }
  if (self_ != -1 && self_ != self) {
    throw TransportError("the transport is already started as " + called(self_));
  }
  self_ = self;
}

Token Opening::new_token() {
  // From the system's random source, because the token authenticates messages.
  const auto word = [this] { return uint64_t{device_()} << 32 | device_(); };
  return {word() | 1, word()};
}

void Opening::open(Link& link) {
  link.is_final = false;
  processes_.watch(link.peer, link.credentials.process);
  try {
    open_endpoint(link, link.endpoint);
    link.token = new_token();
    link.next_small = 0;
    link.next_large = kFirstLarge;
    link.is_confirmed = false;
    table_.renew(link);
    ++services_.counters.connections;
    services_.timers.at(Clock::now() + services_.settings.handshake_timeout,
                        [this, peer = link.peer, attempt = link.attempt] {
                          Link* const link = table_.find(peer, attempt);
                          if (link != nullptr && link->endpoint != nullptr && !link->is_confirmed) {
                            lose_and_retry(*link, "it has not answered");
                          }
                        });
    greet(link);
  } catch (...) {
    teardown_.close(link);  // without a greeting or a time limit, it would stay for ever
    throw;
  }
}

void Opening::open_endpoint(Link& link, ucp_ep_h& endpoint) {
  try {
    endpoints_.open(link.peer, link.address, called(link.peer) + " cannot be reached", endpoint);
    ++link.opened;
  } catch (const TransportError&) {
    processes_.check_end(link.peer);
    throw;
  }
}

// UCX pairs the endpoints of two workers in the order in which each worker opens them. If the peer has given up some of
// its own without an answer, the next one of this worker would belong to one that is closed: in shared memory, UCX
// would wait for ever for the answer to a large message, and over a network the connection would fail when it is used.
// So this worker gives up as many. Over a network they are closed with the link, because they may share a TCP
// connection with the peer's endpoint.
void Opening::skip_endpoints(Link& link, uint64_t theirs) {
  for (int i = 0; i < kMostSkipped && link.opened + 1 < theirs; ++i) {
    ucp_ep_h& unused = link.skipped.emplace_back();
    try {
      open_endpoint(link, unused);
    } catch (...) {
      link.skipped.pop_back();
      throw;
    }
    if (is_in_shared_memory(unused)) {
      teardown_.close_skipped(link);
    } else if (link.skipped.size() >= kMostSkippedInNetwork) {
      return;
    }
  }
}

void Opening::greet(Link& link) {
  Greeting greeting;
  greeting.from = static_cast<uint32_t>(self_);
  greeting.token = link.token;
  greeting.about = link.their_token;
  greeting.proof = link.credentials.our_proof;
  greeting.number = link.attempt;
  greeting.opened = link.opened;
  std::string bytes(reinterpret_cast<const char*>(&greeting), sizeof greeting), proof;
  if (services_.identity != nullptr) {
    proof = services_.identity->prove(link.credentials.our_statement + bytes, link.certificates);
  }
  outbox_.send_head(link.endpoint, Kind::kGreeting, bytes, std::move(proof));
}

void Opening::retry(Link& link) {
  if (is_stopped_) {
    return;
  }
  link.is_final = false;
  table_.renew(link);
  const auto longest = std::min(kLongestPause, kFirstPause * (1 << std::min(link.failures++, 10)));
  // Random, so that the workers do not all connect to a returning worker at the same moment.
  const auto wait = longest + longest * static_cast<int>(random_() % 50) / 100;
  try {
    services_.timers.at(Clock::now() + wait, [this, peer = link.peer, attempt = link.attempt] {
      Link* const link = table_.find(peer, attempt);
      if (link != nullptr && link->endpoint == nullptr && !is_stopped_) {
        open_or_retry(*link);
      }
    });
  } catch (const std::bad_alloc&) {
    teardown_.end_later(link);
  }
}

void Opening::open_or_retry(Link& link) {
  try {
    open(link);
  } catch (const std::exception&) {  // it cannot be reached now, or memory is short
    retry(link);
  }
}

void Opening::lose_and_retry(Link& link, std::string_view reason) {
  teardown_.lose(link, reason);
  retry(link);
}

}  // namespace rpc_backends::ucx
