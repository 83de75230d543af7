#include "links.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "link.h"

namespace rpc_backends::ucx {

using namespace wire;

namespace {

// How long a copy from the memory of a peer may take before its connection is closed anyway.
constexpr std::chrono::seconds kCopyTime{5};
// Copying parts into the header of an active message is worth it up to this many bytes.
constexpr size_t kLongestHeader = 6144;
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
