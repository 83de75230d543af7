// How a link opens: greetings, proofs, and further attempts.
#include <algorithm>
#include <cstring>
#include <utility>

#include "link.h"
#include "links.h"

namespace rpc_backends::ucx {

using namespace wire;

namespace {

// The time between two attempts to reach a lost peer. It doubles after each attempt.
constexpr std::chrono::milliseconds kFirstPause{50};
constexpr std::chrono::milliseconds kLongestPause{5000};
// The most endpoints that a greeting makes this worker open and close.
constexpr int kMostSkipped = 1000;

}  // namespace

Token Links::new_token() {
  // From the system's random source, because the token authenticates messages.
  const auto word = [this] { return uint64_t{device_()} << 32 | device_(); };
  return {word() | 1, word()};
}

void Links::open(Link& link) {
  processes_.watch(link.peer, link.credentials.process);
  try {
    open_endpoint(link, link.endpoint);
    link.token = new_token();
    link.next_small = 0;
    link.next_large = kFirstLarge;
    link.is_confirmed = false;
    link.attempt = next_attempt_++;
    ++services_.counters.connections;
    services_.timers.at(
        Clock::now() + services_.settings.handshake_timeout, [this, peer = link.peer, attempt = link.attempt] {
          Link* const link = find(peer);
          if (link != nullptr && link->attempt == attempt && link->endpoint != nullptr && !link->is_confirmed) {
            lose(*link, "it has not answered", true);
          }
        });
    greet(link);
  } catch (...) {
    close_endpoints(link);  // without a greeting or a time limit, it would stay for ever
    throw;
  }
}

void Links::open_endpoint(Link& link, ucp_ep_h& endpoint) {
  try {
    endpoints_.open(link.peer, link.address, called(link.peer) + " cannot be reached", endpoint);
    ++link.opened;
  } catch (const TransportError&) {
    processes_.check_end(link.peer);
    throw;
  }
}

// UCX pairs the endpoints of two workers in the order in which each worker opens them. If the peer has given up some of
// its own without an answer, the next one of this worker would belong to one that is closed, and UCX would wait for
// ever for the answer to a large message. So this worker gives up as many.
void Links::skip_endpoints(Link& link, uint64_t theirs) {
  for (int i = 0; i < kMostSkipped && link.opened + 1 < theirs; ++i) {
    ucp_ep_h unused = nullptr;
    open_endpoint(link, unused);
    const bool is_here = is_in_shared_memory(unused);
    endpoints_.close(unused);
    if (!is_here) {
      return;  // over a network, UCX learns that the peer has closed its own
    }
  }
}

void Links::greet(Link& link) {
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

void Links::greeted(const Greeted& greeting) {
  const std::string proof(greeting.head.proof.data(), greeting.head.proof.size());
  const auto known = proofs_.find(proof);
  if (known != proofs_.end()) {
    admit(known->second, greeting);
    return;
  }
  strangers_.look_up(proof, greeting);
}

bool Links::is_proved(Link& link, const Greeted& greeted) {
  if (services_.identity == nullptr) {
    return true;
  }
  const Greeting& head = greeted.head;
  try {
    // Of its present link the peer may send several greetings; an attacker repeats those of earlier ones.
    if (head.number < link.least_number || (head.number == link.their_number && !(head.token == link.their_token))) {
      throw TransportError("its greeting was used before");
    }
    const bool knows_us = static_cast<bool>(head.about);
    std::string statement = link.credentials.their_statement;
    statement.append(reinterpret_cast<const char*>(&head), sizeof head);
    Identity::Proved proved = services_.identity->check(greeted.identity, statement, knows_us);
    if (proved.subject.identity != link.credentials.identity) {
      throw TransportError("it has the certificate of " + proved.subject.text());
    }
    link.subject = std::move(proved.subject);
    link.certificates = proved.certificates;
    return true;
  } catch (const TransportError& error) {
    ++services_.counters.refused;
    services_.callback_thread.report("a process that claims to be " + called(link.peer) + ": " + error.what());
    return false;
  }
}

void Links::admit(int peer, const Greeted& greeted) {
  const Greeting& greeting = greeted.head;
  Link* const link = find(peer);
  if (link == nullptr || static_cast<int>(greeting.from) != peer || !greeting.token) {
    ++services_.counters.refused;
    return;
  }
  if (!is_proved(*link, greeted)) {
    return;
  }
  const bool is_new = !(link->their_token == greeting.token);
  if (is_new) {
    const bool again = static_cast<bool>(link->their_token);
    end_incoming(*link);
    tokens_[greeting.token] = peer;  // may throw; then a later greeting is new again
    link->their_token = greeting.token;
    link->their_number = link->least_number = greeting.number;
    if (again && link->is_confirmed && !link->is_lost) {
      // Answers that the peer sent on its former link may be lost.
      const std::string reason = "it has connected again";
      if (greeting.about == link->token) {
        report_lost(*link, reason);
        report_found(*link);
      } else {
        lose(*link, reason, false);  // it has given up this worker's link, perhaps without a goodbye that arrived
      }
    }
  }
  const bool knows_ours = link->endpoint != nullptr && greeting.about == link->token;
  if (link->endpoint == nullptr && closing_) {
    return;
  }
  try {
    if (link->endpoint == nullptr) {
      skip_endpoints(*link, greeting.opened);
      open(*link);
    } else if (is_new || !knows_ours) {
      greet(*link);
    }
  } catch (const TransportError& error) {
    lose(*link, error.what(), true);
    return;
  }
  if (knows_ours && !link->is_confirmed) {
    confirm(*link);
  }
}

void Links::confirm(Link& link) {
  link.is_confirmed = true;
  link.is_networked = !is_in_shared_memory(link.endpoint);
  link.failures = 0;
  if (link.is_lost) {
    report_found(link);
  }
  try {
    while (!link.queue.empty() && link.is_confirmed) {
      std::unique_ptr<Outgoing> first = std::move(link.queue.front());
      link.queue.pop_front();
      post(link, std::move(first));
    }
  } catch (const std::bad_alloc&) {
    mark_broken(&link);  // its messages must not be overtaken
  } catch (const TransportError& error) {
    lose(link, error.what(), true);
  }
}

void Links::schedule_retry(Link& link) {
  if (closing_) {
    return;
  }
  link.attempt = next_attempt_++;
  const auto longest = std::min(kLongestPause, kFirstPause * (1 << std::min(link.failures++, 10)));
  // Random, so that the workers do not all connect to a returning worker at the same moment.
  const auto wait = longest + longest * static_cast<int>(random_() % 50) / 100;
  services_.timers.at(Clock::now() + wait, [this, peer = link.peer, attempt = link.attempt] {
    Link* const link = find(peer);
    if (link == nullptr || link->attempt != attempt || link->endpoint != nullptr || closing_) {
      return;
    }
    try {
      open(*link);
    } catch (const TransportError&) {
      schedule_retry(*link);
    }
  });
}

ucs_status_t Links::on_greeting(void* self, const void* header, size_t header_size, void* data, size_t size,
                                const ucp_am_recv_param_t* param) {
  auto& links = *static_cast<Links*>(self);
  Greeted greeted;
  Greeting& greeting = greeted.head;
  if (header_size == sizeof greeting) {
    std::memcpy(&greeting, header, sizeof greeting);
  }
  const bool is_here = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
  const size_t most = links.services_.identity == nullptr ? 0 : Identity::kLongest;
  if (header_size != sizeof greeting || greeting.magic != kMagic || greeting.from > INT32_MAX || !is_here ||
      size > most) {
    ++links.services_.counters.refused;
    return UCS_OK;
  }
  try {
    greeted.identity.assign(static_cast<const char*>(data), size);
    links.run_later([&links, greeted = std::move(greeted)] { links.greeted(greeted); });
  } catch (const std::bad_alloc&) {
    ++links.services_.counters.dropped;  // its sender tries again when it gets no answer
  }
  return UCS_OK;
}

}  // namespace rpc_backends::ucx
