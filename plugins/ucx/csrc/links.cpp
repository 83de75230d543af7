#include "links.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

namespace rpc_backends::ucx {

using namespace wire;

namespace {

// When the transport is closed: how long goodbyes may take at least, and how long UCX may take to close its endpoints.
constexpr std::chrono::milliseconds kGoodbyeTime{200};
constexpr std::chrono::seconds kCloseTime{1};
// How long to sleep between two calls of progress() that find nothing to do.
constexpr std::chrono::microseconds kFirstSleep{50};
constexpr std::chrono::microseconds kLongestSleep{1000};

}  // namespace

Links::Links(const Services& services, Worker& worker)
    : services_(services),
      worker_(worker),
      table_(services.settings.max_message),
      endpoints_(
          worker, services.inbox, [this](ucp_ep_h endpoint, ucs_status_t status) { on_error(endpoint, status); },
          [this](int peer) { arrivals_.finish_copies(peer); }),
      outbox_(services_),
      arrivals_(services_, worker, table_, deferred_,
                [this](int peer, std::string_view reason) { reject(peer, reason); }),
      processes_(services.inbox),
      teardown_(services_, table_, endpoints_, outbox_),
      opening_(services_, table_, endpoints_, outbox_, processes_, teardown_),
      sender_(services_, worker, table_, deferred_, teardown_, opening_, outbox_),
      handshake_(services_, worker, table_, deferred_, teardown_, opening_, sender_) {
  worker_.handle(Kind::kGoodbye, &on_goodbye, this);
}

// The UCX worker is destroyed already, so UCX uses none of this any more. Messages that are not sent completely are not
// released: their receivers may still copy them.
Links::~Links() = default;

void Links::learn(int peer, const std::string& address, const Credentials& credentials) {
  Link* link = table_.find(peer);
  const bool is_known =
      link != nullptr && link->address == address && link->credentials.our_proof == credentials.our_proof &&
      link->credentials.identity == credentials.identity && link->credentials.their_proof == credentials.their_proof;
  if (!is_known) {
    if (link != nullptr) {
      teardown_.lose(*link, "its address has changed");
      processes_.forget(peer);
    } else {
      link = &table_.add(peer);
    }
    table_.set_process(*link, address, credentials);
  }
  if (link->is_lost || link->is_broken) {
    link->failures = 0;
    opening_.retry(*link);
  }
  handshake_.on_learned(*link);
}

void Links::forget(int peer) {
  Link* const link = table_.find(peer);
  if (link == nullptr) {
    return;
  }
  try {
    teardown_.part(*link, false, "the worker has removed this one from its group");
  } catch (const std::bad_alloc&) {
    teardown_.close(*link);  // without a goodbye
  }
  teardown_.drop_queue(*link);
  processes_.forget(peer);
  table_.remove(*link);
}

void Links::send(int peer, std::unique_ptr<Outgoing>&& outgoing) {
  Link* const link = table_.find(peer);
  // Without an address if memory was short when it was learned.
  if (!opening_.is_started() || link == nullptr || link->address.empty()) {
    throw TransportError(opening_.is_started() ? called(peer) + " is not known to this worker"
                                               : "the transport has not been started");
  }
  if (link->is_lost) {
    throw TransportError(called(peer) + " is lost: " + link->reason);
  }
  sender_.send(*link, std::move(outgoing));
}

void Links::on_process_end(uint64_t id) {
  // Handle what the peer sent before its end.
  try {
    for (int i = 0; i < 1000 && progress(); ++i) {
    }
  } catch (...) {
    processes_.watch_again(id);  // the end is reported once more
    throw;
  }
  // Looked up only now, because progress() may have removed the link.
  const auto peer = processes_.peer_of(id);
  Link* const link = peer ? table_.find(*peer) : nullptr;
  if (link != nullptr) {
    processes_.forget(link->peer);
    teardown_.end_incoming(*link);
    teardown_.lose(*link, "its process has ended");
  }
}

void Links::goodbye(const Goodbye& head, const std::string& reason) {
  Link* const link = table_.of_token(head.token);
  if (link == nullptr || ++link->goodbyes < head.copies) {
    return;
  }
  arrivals_.deliver_below(link->peer, head.complete, kFirstLarge + head.complete_large);
  if (table_.of_token(head.token) != link) {
    return;  // one of these messages was malformed
  }
  teardown_.end_incoming(*link);
  if (head.comes_back != 0) {
    opening_.lose_and_retry(*link, reason);
  } else {
    teardown_.lose(*link, reason);
  }
}

void Links::reject(int peer, std::string_view reason) {
  Link* const link = table_.find(peer);
  if (link == nullptr || link->endpoint == nullptr) {
    return;  // there is no connection to close
  }
  ++services_.counters.rejected;
  try {
    const std::string text(reason);
    services_.callback_thread.report("the connection to " + called(peer) + " is closed: " + text);
    teardown_.part(*link, true, "it has closed the connection: " + text);
    teardown_.lose(*link, "rejected: " + text);
  } catch (const std::bad_alloc&) {
    teardown_.end_later(*link);
  }
}

void Links::end_revoked() {
  for (auto& [peer, link] : table_) {
    if (!link->subject.identity.empty() && services_.identity->is_revoked(link->subject)) {
      end_revoked(*link);
    }
  }
}

void Links::end_revoked(Link& link) {
  const Subject subject = std::exchange(link.subject, {});
  if (link.endpoint == nullptr && !link.their_token) {
    return;
  }
  try {
    services_.callback_thread.report("the connection to " + called(link.peer) + " is closed: the certificate of " +
                                     subject.text() + " is revoked");
    teardown_.part(link, true, "it has closed the connection");  // the reason is not for the peer
    teardown_.lose(link, "its certificate is revoked");
  } catch (const std::bad_alloc&) {
    link.is_final = true;
    teardown_.end_later(link);
  }
}

void Links::close(Clock::time_point deadline) {
  opening_.stop();
  progress_until(deadline, [this] {
    return !outbox_.is_leaving() &&
           std::all_of(table_.begin(), table_.end(), [](const auto& entry) { return entry.second->queue.empty(); });
  });
  for (auto& [peer, link] : table_) {
    try {
      teardown_.leave(*link);
    } catch (const std::bad_alloc&) {
      teardown_.close(*link);  // without a goodbye
    }
    processes_.forget(link->peer);
  }
  progress_until(std::max(deadline, Clock::now() + kGoodbyeTime), [this] { return !endpoints_.is_flushing(); });
  for (auto& [peer, link] : table_) {
    teardown_.close_skipped(*link);
  }
  progress_until(Clock::now() + kCloseTime, [this] {
    endpoints_.close_due(Clock::time_point::max());
    return !endpoints_.is_flushing() && !endpoints_.is_closing();
  });
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
    Link* const link = table_.find(endpoints_.peer_of(endpoint));
    return link != nullptr && (link->endpoint == endpoint || link->bulk == endpoint) ? link : nullptr;
  };
  take_log_line();
  try {
    deferred_.add([this, owner, reason = "the connection has failed: " + text_of(status)] {
      if (Link* const link = owner()) {
        opening_.lose_and_retry(*link, reason);
      }
    });
  } catch (const std::bad_alloc&) {
    table_.mark_broken(owner());
  }
}

void Links::end_broken() {
  for (auto& [peer, link] : table_) {
    if (link->is_broken) {
      teardown_.part(*link, true, "it has closed the connection: not enough memory for a message");
      link->is_broken = false;  // only now, because part() may throw; the following may mark it again
      const std::string_view reason = "not enough memory for a message";
      if (link->is_final) {
        teardown_.lose(*link, reason);
      } else {
        opening_.lose_and_retry(*link, reason);
      }
    }
  }
  table_.update_broken();  // not false: a callback of UCX may have marked one more
}

bool Links::progress() {
  bool busy = ucp_worker_progress(worker_.get()) != 0;
  if (table_.has_broken()) {
    end_broken();
  }
  busy = deferred_.run() || busy;
  busy = handshake_.finish_lookups() || busy;
  if (endpoints_.is_flushing()) {
    endpoints_.close_due(Clock::now());
  }
  return arrivals_.deliver_fetched() || busy;
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
    links.deferred_.add([&links, head, reason = std::move(reason)] { links.goodbye(head, reason); });
  } catch (const std::bad_alloc&) {
    links.table_.mark_broken(links.table_.of_token(head.token));
  }
  return UCS_OK;
}

std::map<int, std::string> Links::transports() const {
  std::map<int, std::string> transports;
  for (const auto& [peer, link] : table_) {
    if (link->endpoint != nullptr && link->is_confirmed) {
      transports[peer] = transports_of(link->endpoint);
    }
  }
  return transports;
}

}  // namespace rpc_backends::ucx
