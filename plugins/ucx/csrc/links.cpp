#include "links.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "link.h"

namespace rpc_backends::ucx {

using namespace wire;

namespace {

// The time between two attempts to reach a lost peer. It doubles after each attempt.
constexpr std::chrono::milliseconds kFirstPause{50};
constexpr std::chrono::milliseconds kLongestPause{5000};
// How long a copy from the memory of a peer may take before its connection is closed anyway.
constexpr std::chrono::seconds kCopyTime{5};
// Copying parts into the header of an active message is worth it up to this many bytes.
constexpr size_t kLongestHeader = 6144;
// The most endpoints that a greeting makes this worker open and close.
constexpr int kMostSkipped = 1000;
// How long a connection stays open for a goodbye that has not left.
constexpr std::chrono::seconds kPartingTime{5};
// When the transport is closed: how long goodbyes may take at least, and how long UCX may take to close its endpoints.
constexpr std::chrono::milliseconds kGoodbyeTime{200};
constexpr std::chrono::seconds kCloseTime{1};
// How long to sleep between two calls of progress() that find nothing to do.
constexpr std::chrono::microseconds kFirstSleep{50};
constexpr std::chrono::microseconds kLongestSleep{1000};

std::string text_of(const Proof& proof) {
  return {proof.data(), proof.size()};
}

}  // namespace

Links::Links(const Services& services, Worker& worker)
    : services_(services),
      worker_(worker),
      endpoints_(
          worker, services.inbox, [this](ucp_ep_h endpoint, ucs_status_t status) { on_error(endpoint, status); },
          [this](int peer) { finish_copies(peer); }),
      outbox_({services.settings, services.counters, services.inbox, services.releaser, services.timers,
               services.device_memory}),
      arrivals_(*this, worker, services.inbox, services.counters, services.device_memory),
      strangers_(services.callback_thread, services.inbox, services.counters),
      processes_(services.inbox),
      max_header_(std::min(worker.max_header(), kLongestHeader)) {
  worker_.handle(Kind::kGreeting, &on_greeting, this);
  worker_.handle(Kind::kGoodbye, &on_goodbye, this);
}

// The UCX worker is destroyed already, so UCX uses none of this any more. Messages that are not sent completely are not
// released: their receivers may still copy them.
Links::~Links() = default;

void Links::start(int self) {
  if (self < 0) {
    throw TransportError("a worker id must not be negative, and this is " + std::to_string(self));
  }
  if (self_ != -1 && self_ != self) {
    throw TransportError("the transport is already started as " + called(self_));
  }
  self_ = self;
}

Link* Links::find(int peer) {
  const auto known = links_.find(peer);
  return known == links_.end() ? nullptr : known->second.get();
}

Link* Links::owner_of(const Token& token) {
  const auto known = tokens_.find(token);
  return known == tokens_.end() ? nullptr : find(known->second);
}

void Links::learn(int peer, const std::string& address, const Credentials& credentials) {
  Link* link = find(peer);
  const bool is_known =
      link != nullptr && link->address == address && link->credentials.our_proof == credentials.our_proof &&
      link->credentials.identity == credentials.identity && link->credentials.their_proof == credentials.their_proof;
  if (!is_known) {
    if (link != nullptr) {
      lose(*link, "its address has changed", false);
      processes_.forget(link->peer);
      proofs_.erase(text_of(link->credentials.their_proof));
    } else {
      link = links_.emplace(peer, std::make_unique<Link>(peer, services_.settings.max_message)).first->second.get();
    }
    link->address = address;
    link->credentials = credentials;
    link->opened = 0;
    link->their_number = link->least_number = 0;
    link->subject = {};
    link->certificates = {};
    proofs_[text_of(credentials.their_proof)] = peer;
  }
  if (link->is_lost) {
    link->failures = 0;
    schedule_retry(*link);
  }
  if (const auto greeting = strangers_.take(text_of(credentials.their_proof))) {
    admit(peer, *greeting);
  }
}

void Links::forget(int peer) {
  Link* const link = find(peer);
  if (link == nullptr) {
    return;
  }
  part(*link, false, "the worker has removed this one from its group");
  processes_.forget(link->peer);
  proofs_.erase(text_of(link->credentials.their_proof));
  links_.erase(peer);
}

// --- opening ----------------------------------------------------------------------------------------

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

void Links::on_process_end(uint64_t id) {
  // Handle what the peer sent before its end.
  for (int i = 0; i < 1000 && progress(); ++i) {
  }
  // Looked up only now, because progress() may have removed the link.
  const auto peer = processes_.peer_of(id);
  Link* const link = peer ? find(*peer) : nullptr;
  if (link != nullptr) {
    processes_.forget(link->peer);
    end_incoming(*link);
    lose(*link, "its process has ended", false);
  }
}

void Links::greeted(const Greeted& greeting) {
  const std::string proof = text_of(greeting.head.proof);
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

// --- ending -----------------------------------------------------------------------------------------

void Links::report_found(Link& link) {
  Event event;
  event.kind = Event::Kind::kFound;
  event.peer = link.peer;
  services_.inbox.push(std::move(event));
  link.is_lost = false;
  ++services_.counters.peers_found;
}

void Links::report_lost(Link& link, const std::string& reason) {
  Event event;
  event.kind = Event::Kind::kLost;
  event.peer = link.peer;
  event.reason = reason;
  link.reason = reason;
  services_.inbox.push(std::move(event));  // may throw, and the link is lost only if that is known
  link.is_lost = true;
  ++services_.counters.peers_lost;
}

void Links::lose(Link& link, const std::string& reason, bool retry) {
  close_endpoints(link);
  link.is_confirmed = false;
  for (auto& queued : link.queue) {
    outbox_.drop(std::move(queued));
  }
  link.queue.clear();
  if (!link.is_lost) {
    report_lost(link, reason);
  }
  link.attempt = next_attempt_++;
  if (retry) {
    schedule_retry(link);
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

void Links::end_incoming(Link& link) {
  tokens_.erase(link.their_token);
  link.their_token = Token();
  link.least_number = std::max(link.least_number, link.their_number + 1);
  link.goodbyes = 0;
  std::destroy_at(&link.small);
  std::construct_at(&link.small, services_.settings.max_message);
  std::destroy_at(&link.large);
  std::construct_at(&link.large, services_.settings.max_message, kFirstLarge);
}

void Links::close_endpoints(Link& link) {
  if (link.endpoint == nullptr) {
    return;
  }
  if (link.bulk != nullptr) {
    endpoints_.close(std::exchange(link.bulk, nullptr));
  }
  endpoints_.close(std::exchange(link.endpoint, nullptr));
  link.token = Token();
}

void Links::finish_copies(int peer) {
  // UCX aborts the process if an endpoint is destroyed while it copies from the peer's memory.
  for (const auto end = Clock::now() + kCopyTime; arrivals_.is_fetching(peer) && Clock::now() < end;) {
    if (ucp_worker_progress(worker_.get()) == 0) {
      break;  // it waits for the peer, and does not copy
    }
  }
}

void Links::part(Link& link, bool comes_back, const std::string& reason) {
  end_incoming(link);
  if (link.endpoint == nullptr) {
    return;
  }
  say_goodbye(link, comes_back, reason);
  const auto until = Clock::now() + kPartingTime;
  // A goodbye that UCX cannot send at once would be dropped with the endpoint.
  endpoints_.close_flushed(std::exchange(link.endpoint, nullptr), until);
  if (link.bulk != nullptr) {
    endpoints_.close(std::exchange(link.bulk, nullptr));
  }
  link.token = Token();
  if (endpoints_.is_flushing()) {
    services_.timers.at(until, [this] { endpoints_.close_due(Clock::now()); });
  }
}

void Links::say_goodbye(Link& link, bool comes_back, const std::string& reason, bool on_both) {
  if (link.endpoint == nullptr) {
    return;
  }
  Goodbye head;
  head.token = link.token;
  head.complete = outbox_.first_leaving(link.peer, link.next_small);
  head.complete_large = outbox_.first_leaving(link.peer, link.next_large) - kFirstLarge;
  head.comes_back = comes_back ? 1 : 0;
  const bool is_twice = on_both && link.bulk != nullptr;
  head.copies = is_twice ? 2 : 1;
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
  bytes += reason.substr(0, kLongestReason);
  outbox_.send_head(link.endpoint, Kind::kGoodbye, bytes);
  if (is_twice) {
    outbox_.send_head(link.bulk, Kind::kGoodbye, bytes);
  }
}

void Links::goodbye(const Goodbye& head, const std::string& reason) {
  Link* const link = owner_of(head.token);
  if (link == nullptr || ++link->goodbyes < head.copies) {
    return;
  }
  arrivals_.deliver_below(link->peer, head.complete, kFirstLarge + head.complete_large);
  if (owner_of(head.token) != link) {
    return;  // one of these messages was malformed
  }
  end_incoming(*link);
  lose(*link, reason, head.comes_back != 0);
}

void Links::reject(int peer, const std::string& reason) {
  Link* const link = find(peer);
  if (link == nullptr || link->endpoint == nullptr) {
    return;  // there is no connection to close
  }
  ++services_.counters.rejected;
  services_.callback_thread.report("the connection to " + called(peer) + " is closed: " + reason);
  part(*link, true, "it has closed the connection: " + reason);
  lose(*link, "rejected: " + reason, false);
}

void Links::end_revoked() {
  for (auto& [peer, link] : links_) {
    if (link->subject.identity.empty() || !services_.identity->is_revoked(link->subject)) {
      continue;
    }
    const std::string who = link->subject.text();
    link->subject = {};
    if (link->endpoint == nullptr && !link->their_token) {
      continue;
    }
    services_.callback_thread.report("the connection to " + called(peer) + " is closed: the certificate of " + who +
                                     " is revoked");
    part(*link, true, "it has closed the connection");  // the reason is not for the peer
    lose(*link, "its certificate is revoked", false);
  }
}

void Links::close(Clock::time_point deadline) {
  closing_ = true;
  progress_until(deadline, [this] {
    return !outbox_.is_leaving() &&
           std::all_of(links_.begin(), links_.end(), [](const auto& entry) { return entry.second->queue.empty(); });
  });
  for (auto& [peer, link] : links_) {
    say_goodbye(*link, false, "it has closed the connection", true);
    for (const ucp_ep_h endpoint : {std::exchange(link->endpoint, nullptr), std::exchange(link->bulk, nullptr)}) {
      if (endpoint != nullptr) {
        endpoints_.close_flushed(endpoint, Clock::time_point::max());
      }
    }
    processes_.forget(link->peer);
  }
  progress_until(std::max(deadline, Clock::now() + kGoodbyeTime), [this] { return !endpoints_.is_flushing(); });
  endpoints_.close_due(Clock::time_point::max());
  progress_until(Clock::now() + kCloseTime, [this] { return !endpoints_.is_closing(); });
}

template <typename IsOver>
void Links::progress_until(Clock::time_point deadline, const IsOver& is_over) {
  auto pause = kFirstSleep;
  while (!is_over() && Clock::now() < deadline) {
    if (progress()) {
      pause = kFirstSleep;
    } else {
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, kLongestSleep);
    }
  }
}

void Links::on_error(ucp_ep_h endpoint, ucs_status_t status) {
  const auto owner = [this, endpoint] {
    Link* const link = find(endpoints_.peer_of(endpoint));
    return link != nullptr && (link->endpoint == endpoint || link->bulk == endpoint) ? link : nullptr;
  };
  take_log_line();
  try {
    run_later([this, owner, status] {
      if (Link* const link = owner()) {
        lose(*link, "the connection has failed: " + ucx::text_of(status), true);
      }
    });
  } catch (const std::bad_alloc&) {
    mark_broken(owner());
  }
}

void Links::mark_broken(Link* link) noexcept {
  if (link != nullptr) {
    link->is_broken = true;
    has_broken_ = true;
  }
}

void Links::end_broken() {
  for (auto& [peer, link] : links_) {
    if (link->is_broken) {
      const std::string reason = "not enough memory for a message";
      part(*link, true, "it has closed the connection: " + reason);
      lose(*link, reason, true);
      link->is_broken = false;
    }
  }
  has_broken_ = false;  // only now, because reject() may throw
}

// --- messages ----------------------------------------------------------------------------------------

void Links::send(int peer, Parts parts) {
  Link* const link = find(peer);
  if (self_ == -1 || link == nullptr) {
    throw TransportError(self_ == -1 ? "the transport has not been started"
                                     : called(peer) + " is not known to this worker");
  }
  if (link->is_lost) {
    throw TransportError(called(peer) + " is lost: " + link->reason);
  }
  uint64_t bytes = 0;
  for (const Part& part : parts) {
    bytes += part.size;
    (void)services_.device_memory.type_of(part.memory);
  }
  if (bytes > link->credentials.max_message) {
    throw TransportError("a message of " + std::to_string(bytes) + " bytes is larger than the " +
                         std::to_string(link->credentials.max_message) + " that " + called(peer) +
                         " takes (its max_message_bytes)");
  }
  auto outgoing = std::make_unique<Outgoing>(std::move(parts), max_header_);
  if (link->endpoint == nullptr) {
    open(*link);
  }
  if (link->is_confirmed) {
    post(*link, std::move(outgoing));
  } else {
    link->queue.push_back(std::move(outgoing));
  }
  services_.inbox.expect_traffic();
}

ucp_ep_h Links::endpoint_for(Link& link, const Outgoing& outgoing) {
  if (!outgoing.is_large() || !link.is_networked) {
    return link.endpoint;
  }
  if (link.bulk == nullptr) {
    open_endpoint(link, link.bulk);
  }
  return link.bulk;
}

void Links::post(Link& link, std::unique_ptr<Outgoing> outgoing) {
  uint64_t& number = outgoing->is_large() ? link.next_large : link.next_small;
  const ucp_ep_h endpoint = endpoint_for(link, *outgoing);
  const ucs_status_t status = outbox_.post(endpoint, link.peer, link.token, number, std::move(outgoing));
  ++number;  // only now, because the peer waits for each number
  if (status != UCS_OK) {
    const std::string reason = "the connection has failed: " + ucx::text_of(status);
    run_later([this, peer = link.peer, attempt = link.attempt, reason] {
      Link* const current = find(peer);
      if (current != nullptr && current->attempt == attempt) {
        lose(*current, reason, true);
      }
    });
    services_.inbox.nudge();
  }
}

bool Links::progress() {
  bool busy = ucp_worker_progress(worker_.get()) != 0;
  if (has_broken_) {
    end_broken();
  }
  busy = do_later() || busy;
  busy = strangers_.finish_lookups() || busy;
  if (endpoints_.is_flushing()) {
    endpoints_.close_due(Clock::now());
  }
  return arrivals_.deliver_fetched() || busy;
}

bool Links::do_later() {
  bool any = false;
  while (!later_.empty()) {
    const std::function<void()> task = std::move(later_.front());
    later_.pop_front();
    task();
    any = true;
  }
  return any;
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

ucs_status_t Links::on_goodbye(void* self, const void* header, size_t header_size, void* /*data*/, size_t /*size*/,
                               const ucp_am_recv_param_t* /*param*/) {
  auto& links = *static_cast<Links*>(self);
  Goodbye head;
  if (header_size < sizeof head || header_size > sizeof head + kLongestReason) {
    return UCS_OK;
  }
  std::memcpy(&head, header, sizeof head);
  try {
    std::string reason(static_cast<const char*>(header) + sizeof head, header_size - sizeof head);
    links.run_later([&links, head, reason = std::move(reason)] { links.goodbye(head, reason); });
  } catch (const std::bad_alloc&) {
    links.mark_broken(links.owner_of(head.token));
  }
  return UCS_OK;
}

std::map<int, std::string> Links::transports() const {
  std::map<int, std::string> transports;
  for (const auto& [peer, link] : links_) {
    if (link->endpoint != nullptr && link->is_confirmed) {
      transports[peer] = transports_of(link->endpoint);
    }
  }
  return transports;
}

}  // namespace rpc_backends::ucx
