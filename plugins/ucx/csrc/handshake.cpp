#include "handshake.h"

#include <cstring>
#include <new>
#include <utility>

namespace rpc_backends::ucx {

using namespace wire;

Handshake::Handshake(const Services& services, Worker& worker, LinkTable& table, DeferredTasks& deferred,
                     Teardown& teardown, Opening& opening, Sender& sender)
    : services_(services),
      table_(table),
      deferred_(deferred),
      teardown_(teardown),
      opening_(opening),
      sender_(sender),
      strangers_(services.callback_thread, services.inbox, services.counters) {
  worker.handle(Kind::kGreeting, &on_greeting, this);
}

void Handshake::on_learned(Link& link) {
  if (const auto greeting = strangers_.take(text_of(link.credentials.their_proof))) {
    admit(link, *greeting);
  }
}

void Handshake::greeted(const Greeted& greeting) {
  const std::string proof = text_of(greeting.head.proof);
  if (Link* const link = table_.of_proof(proof)) {
    admit(*link, greeting);
  } else {
    strangers_.look_up(proof, greeting);
  }
}

bool Handshake::is_proved(Link& link, const Greeted& greeted) {
  if (services_.identity == nullptr) {
    return true;
  }
  const Greeting& head = greeted.head;
  try {
    // Of its present link the peer may send several greetings; an attacker repeats those of earlier ones.
    if (head.number < link.their_number || (head.number == link.their_number && !(head.token == link.their_token))) {
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

void Handshake::admit(Link& link, const Greeted& greeted) {
  const Greeting& greeting = greeted.head;
  if (static_cast<int>(greeting.from) != link.peer || !greeting.token) {
    ++services_.counters.refused;
    return;
  }
  if (!is_proved(link, greeted)) {
    return;
  }
  try {
    follow(link, greeting);
  } catch (const TransportError& error) {
    opening_.lose_and_retry(link, error.what());
  } catch (const std::bad_alloc&) {
    teardown_.end_later(link);
  }
}

void Handshake::follow(Link& link, const Greeting& greeting) {
  const bool is_new = !(link.their_token == greeting.token);
  if (is_new) {
    admit_new(link, greeting);
  }
  const bool knows_ours = link.endpoint != nullptr && greeting.about == link.token;
  if (link.endpoint == nullptr && opening_.is_stopped()) {
    return;
  }
  if (link.endpoint == nullptr) {
    opening_.skip_endpoints(link, greeting.opened);
    opening_.open(link);
  } else if (is_new || !knows_ours) {
    opening_.greet(link);
  }
  if (knows_ours && !link.is_confirmed) {
    confirm(link);
  }
}

void Handshake::admit_new(Link& link, const Greeting& greeting) {
  const bool again = static_cast<bool>(link.their_token);
  // UCX pairs endpoints in the order in which each worker opens them.
  const bool is_mispaired =
      link.endpoint != nullptr && link.opened < greeting.opened && is_in_shared_memory(link.endpoint);
  teardown_.end_incoming(link);
  table_.set_token(link, greeting.token);
  link.their_number = greeting.number;
  if (again && link.is_confirmed && !link.is_lost) {
    // Answers that the peer sent on its former link may be lost. This worker's own link ends, too, because UCX has
    // paired its endpoint with the one that the peer has closed: large messages would wait for ever.
    teardown_.lose(link, "it has connected again");
  } else if (is_mispaired && !opening_.is_stopped()) {
    teardown_.close(link);  // the peer has given up the endpoint that UCX has paired with this one
  }
}

void Handshake::confirm(Link& link) {
  link.is_confirmed = true;
  link.is_networked = !is_in_shared_memory(link.endpoint);
  link.failures = 0;
  if (link.is_lost) {
    report_found(link);
  }
  sender_.flush(link);
}

ucs_status_t Handshake::on_greeting(void* self, const void* header, size_t header_size, void* data, size_t size,
                                    const ucp_am_recv_param_t* param) {
  auto& handshake = *static_cast<Handshake*>(self);
  Greeted greeted;
  Greeting& greeting = greeted.head;
  if (header_size == sizeof greeting) {
    std::memcpy(&greeting, header, sizeof greeting);
  }
  const bool is_here = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
  const size_t most = handshake.services_.identity == nullptr ? 0 : Identity::kLongest;
  if (header_size != sizeof greeting || greeting.magic != kMagic || greeting.from > INT32_MAX || !is_here ||
      size > most) {
    ++handshake.services_.counters.refused;
    return UCS_OK;
  }
  try {
    greeted.identity.assign(static_cast<const char*>(data), size);
    handshake.deferred_.add([&handshake, greeted = std::move(greeted)] { handshake.greeted(greeted); });
  } catch (const std::bad_alloc&) {
    ++handshake.services_.counters.dropped;  // its sender tries again when it gets no answer
  }
  return UCS_OK;
}

void Handshake::report_found(Link& link) {
  Event event;
  event.kind = Event::Kind::kFound;
  event.peer = link.peer;
  services_.inbox.push(std::move(event));
  link.is_lost = false;
  ++services_.counters.peers_found;
}

}  // namespace rpc_backends::ucx
