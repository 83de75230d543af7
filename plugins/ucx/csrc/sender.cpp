#include "sender.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

namespace rpc_backends::ucx {

namespace {

// Copying parts into the header of an active message is worth it up to this many bytes.
constexpr size_t kLongestHeader = 6144;

}  // namespace

Sender::Sender(const Services& services, const Worker& worker, LinkTable& table, DeferredTasks& deferred,
               Teardown& teardown, Opening& opening, Outbox& outbox)
    : services_(services),
      table_(table),
      deferred_(deferred),
      teardown_(teardown),
      opening_(opening),
      outbox_(outbox),
      max_header_(std::min(worker.max_header(), kLongestHeader)) {}

std::unique_ptr<Outgoing> Sender::prepare(Parts parts) const {
  for (const Part& part : parts) {
    (void)services_.device_memory.type_of(part.memory);
  }
  return std::make_unique<Outgoing>(std::move(parts), max_header_);
}

void Sender::send(Link& link, std::unique_ptr<Outgoing>&& outgoing) {
  if (outgoing->bytes() > link.credentials.max_message) {
    throw TransportError("a message of " + std::to_string(outgoing->bytes()) + " bytes is larger than the " +
                         std::to_string(link.credentials.max_message) + " that " + called(link.peer) +
                         " takes (its max_message_bytes)");
  }
  if (link.endpoint == nullptr) {
    try {
      opening_.open(link);
    } catch (const ProcessEnded&) {
      teardown_.lose(link, "its process has ended");  // so that the agent looks for another process in its place
      throw;
    }
  }
  // A broken link ends at the next progress, with what is queued: nothing may overtake that.
  if (link.is_confirmed && !link.is_broken) {
    post(link, std::move(outgoing));
  } else {
    link.queue.push_back(std::move(outgoing));
  }
  services_.inbox.expect_traffic();
}

void Sender::flush(Link& link) {
  try {
    while (!link.queue.empty() && link.is_confirmed) {
      post(link, std::move(link.queue.front()));  // stays in the queue if this throws
      link.queue.pop_front();
    }
  } catch (const std::bad_alloc&) {
    teardown_.end_later(link);  // its messages must not be overtaken
  } catch (const TransportError& error) {
    opening_.lose_and_retry(link, error.what());
  }
}

void Sender::post(Link& link, std::unique_ptr<Outgoing>&& outgoing) {
  uint64_t& number = outgoing->is_large() ? link.next_large : link.next_small;
  const ucp_ep_h endpoint = endpoint_for(link, *outgoing);
  const ucs_status_t status = outbox_.post(endpoint, link.peer, link.token, number, std::move(outgoing));
  ++number;  // only now, because the peer waits for each number
  if (status != UCS_OK) {
    lose_later(link, status);
  }
}

void Sender::lose_later(Link& link, ucs_status_t status) {
  try {
    deferred_.add(
        [this, peer = link.peer, attempt = link.attempt, reason = "the connection has failed: " + text_of(status)] {
          if (Link* const current = table_.find(peer, attempt)) {
            opening_.lose_and_retry(*current, reason);
          }
        });
    services_.inbox.nudge();
  } catch (const std::bad_alloc&) {
    teardown_.end_later(link);
  }
}

ucp_ep_h Sender::endpoint_for(Link& link, const Outgoing& outgoing) {
  if (!outgoing.is_large() || !link.is_networked) {
    return link.endpoint;
  }
  if (link.bulk == nullptr) {
    opening_.open_endpoint(link, link.bulk);
  }
  return link.bulk;
}

}  // namespace rpc_backends::ucx
