#include "teardown.h"

#include <memory>
#include <new>
#include <string>
#include <utility>

namespace rpc_backends::ucx {

using namespace wire;

namespace {

// How long a connection stays open for a goodbye that has not left.
constexpr std::chrono::seconds kPartingTime{5};

// The beginning of a text in UTF-8, at most so many bytes. It ends between two characters.
std::string_view beginning(std::string_view text, size_t most) {
  if (text.size() <= most) {
    return text;
  }
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) {
    --most;
  }
  return text.substr(0, most);
}

}  // namespace

void Teardown::lose(Link& link, std::string_view reason) {
  close(link);
  link.is_confirmed = false;
  link.is_final = true;
  table_.renew(link);
  drop_queue(link);
  try {
    if (!link.is_lost) {
      report_lost(link, reason);
    }
  } catch (const std::bad_alloc&) {
    end_later(link);
  }
}

void Teardown::end_later(Link& link) {
  table_.mark_broken(&link);
  services_.inbox.nudge();
}

void Teardown::drop_queue(Link& link) {
  outbox_.drop(link.queue);
}

void Teardown::report_lost(Link& link, std::string_view reason) {
  Event event;
  event.kind = Event::Kind::kLost;
  event.peer = link.peer;
  event.reason = reason;
  link.reason = reason;
  services_.inbox.push(std::move(event));  // may throw, and the link is lost only if that is known
  link.is_lost = true;
  ++services_.counters.peers_lost;
}

void Teardown::close(Link& link) {
  close_skipped(link);
  if (link.endpoint == nullptr) {
    return;
  }
  if (link.bulk != nullptr) {
    endpoints_.close(std::exchange(link.bulk, nullptr));
  }
  endpoints_.close(std::exchange(link.endpoint, nullptr));
  link.token = Token();
}

void Teardown::close_skipped(Link& link) {
  for (const ucp_ep_h endpoint : std::exchange(link.skipped, {})) {
    endpoints_.close(endpoint);
  }
}

void Teardown::end_incoming(Link& link) {
  table_.clear_token(link);
  link.goodbyes = 0;
  std::destroy_at(&link.small);
  std::construct_at(&link.small, services_.settings.max_message);
  std::destroy_at(&link.large);
  std::construct_at(&link.large, services_.settings.max_message, kFirstLarge);
}

void Teardown::part(Link& link, bool comes_back, std::string_view reason) {
  end_incoming(link);
  close_skipped(link);
  if (link.endpoint == nullptr) {
    return;
  }
  say_goodbye(link, comes_back, reason, false);
  const auto until = Clock::now() + kPartingTime;
  // A goodbye that UCX cannot send at once would be dropped with the endpoint.
  endpoints_.close_flushed(link.endpoint, until);
  link.endpoint = nullptr;
  if (link.bulk != nullptr) {
    endpoints_.close(std::exchange(link.bulk, nullptr));
  }
  link.token = Token();
  if (endpoints_.is_flushing()) {
    services_.timers.at(until, [this] { endpoints_.close_due(Clock::now()); });
  }
}

void Teardown::leave(Link& link) {
  if (link.endpoint == nullptr) {
    return;
  }
  say_goodbye(link, false, "it has closed the connection", true);
  for (ucp_ep_h* const endpoint : {&link.bulk, &link.endpoint}) {
    if (*endpoint != nullptr) {
      endpoints_.close_flushed(*endpoint, Clock::time_point::max());
      *endpoint = nullptr;
    }
  }
}

void Teardown::say_goodbye(Link& link, bool comes_back, std::string_view reason, bool on_both) {
  Goodbye head;
  head.token = link.token;
  head.complete = outbox_.first_leaving(link.peer, link.next_small);
  head.complete_large = outbox_.first_leaving(link.peer, link.next_large) - kFirstLarge;
  head.comes_back = comes_back ? 1 : 0;
  const bool is_twice = on_both && link.bulk != nullptr;
  head.copies = is_twice ? 2 : 1;
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
  bytes += beginning(reason, kLongestReason);
  outbox_.send_head(link.endpoint, Kind::kGoodbye, bytes);
  if (is_twice) {
    outbox_.send_head(link.bulk, Kind::kGoodbye, bytes);
  }
}

}  // namespace rpc_backends::ucx
