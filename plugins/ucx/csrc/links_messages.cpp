#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <utility>

#include "link.h"
#include "links.h"  // sending and receiving messages; links.cpp opens and ends links

namespace rpc_backends::ucx {

using namespace wire;

namespace {

// How long to keep the memory of a message that could not be sent. Its receiver may still be copying it.
constexpr std::chrono::seconds kReadTime{5};
// After this many calls of ucp_worker_progress(), UCX has handled everything that was in its queue before them.
constexpr int kDrain = 64;
constexpr int kEveryPeer = -1;

}  // namespace

// --- sending ----------------------------------------------------------------------------------------

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
  outgoing->links = this;
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

void Links::post(Link& link, std::unique_ptr<Outgoing> owned) {
  Outgoing& outgoing = *owned;
  outgoing.peer = link.peer;
  outgoing.number = link.next_number;
  const auto pieces = outgoing.pieces(link.token, link.next_number++);
  outgoing.pending = 1;
  leaving_.insert(owned.release());
  for (const Outgoing::Piece& piece : pieces) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS |
                         UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.cb.send = &on_sent;
    param.user_data = &outgoing;
    param.memory_type = services_.device_memory.type_of(piece.memory);
    const uint64_t rendezvous = services_.settings.rendezvous;
    // The receiver must fetch the parts on devices, because their data cannot be copied by the processor.
    const bool is_fetched = !piece.memory.is_host() || (rendezvous != 0 && piece.size > rendezvous);
    param.flags = is_fetched ? UCP_AM_SEND_FLAG_RNDV : 0;
    ++outgoing.pending;
    const ucs_status_ptr_t request = ucp_am_send_nbx(link.endpoint, static_cast<unsigned>(piece.kind), piece.header,
                                                     piece.header_size, piece.data, piece.size, &param);
    if (request == nullptr) {
      --outgoing.pending;
    } else if (UCS_PTR_IS_ERR(request)) {
      --outgoing.pending;
      const std::string reason = "the connection has failed: " + ucx::text_of(UCS_PTR_STATUS(request));
      run_later([this, peer = link.peer, attempt = link.attempt, reason] {
        Link* const found = find(peer);
        if (found != nullptr && found->attempt == attempt) {
          lose(*found, reason, true);
        }
      });
      services_.inbox.nudge();
      break;
    }
  }
  ++services_.counters.messages_sent;
  if (outgoing.pending > 1) {
    services_.releaser.hold(outgoing.parts);
    // UCX does not signal that there is room for the rest, so a thread must poll.
    services_.inbox.nudge();
  }
  completed(outgoing);
}

void Links::completed(Outgoing& outgoing) {
  if (--outgoing.pending != 0 || leaving_.erase(&outgoing) == 0) {
    return;
  }
  std::unique_ptr<Outgoing> owned(&outgoing);
  try {
    if (!outgoing.has_failed) {
      sent_.push_back(std::move(owned));
      return;
    }
    const auto kept = std::make_shared<std::unique_ptr<Outgoing>>();
    services_.timers.at(Clock::now() + kReadTime, [this, kept] { sent_.push_back(std::move(*kept)); });
    *kept = std::move(owned);
  } catch (const std::bad_alloc&) {
    if (outgoing.has_failed) {
      (void)owned.release();  // never released: its receiver may still be copying it
    }
  }
}

void Links::send_head(Link& link, Kind kind, std::string bytes) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_COPY_HEADER | UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = [](void* request, ucs_status_t /*status*/, void* /*none*/) { ucp_request_free(request); };
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(link.endpoint, static_cast<unsigned>(kind), bytes.data(), bytes.size(), nullptr, 0, &param);
  if (request != nullptr && !UCS_PTR_IS_ERR(request)) {
    services_.inbox.nudge();
  }
}

void Links::on_sent(void* request, ucs_status_t status, void* argument) {
  Outgoing& outgoing = *static_cast<Outgoing*>(argument);
  // After a failed send, UCX reports the error of the endpoint, unless the endpoint was closed.
  outgoing.has_failed = outgoing.has_failed || status != UCS_OK;
  ucp_request_free(request);
  outgoing.links->completed(outgoing);
}

void Links::take_sent(std::vector<std::unique_ptr<Outgoing>>& sent) {
  sent.swap(sent_);
}

// --- receiving --------------------------------------------------------------------------------------

bool Links::progress() {
  bool busy = ucp_worker_progress(worker_.get()) != 0;
  if (has_broken_) {
    end_broken();
  }
  if (has_answers_.exchange(false)) {
    std::lock_guard<std::mutex> lock(answers_mutex_);
    std::move(answers_.begin(), answers_.end(), std::back_inserter(later_));
    answers_.clear();
  }
  busy = do_later() || busy;
  while (!fetched_.empty() || !checked_.empty()) {
    deliver_fetched();
    busy = true;
  }
  return busy;
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

ucs_status_t Links::on_greeting(void* self, const void* header, size_t header_size, void* /*data*/, size_t /*size*/,
                                const ucp_am_recv_param_t* /*param*/) {
  auto& links = *static_cast<Links*>(self);
  Greeting greeting;
  if (header_size == sizeof greeting) {
    std::memcpy(&greeting, header, sizeof greeting);
  }
  if (header_size != sizeof greeting || greeting.magic != kMagic || greeting.from > INT32_MAX) {
    ++links.services_.counters.refused;
    return UCS_OK;
  }
  try {
    links.run_later([&links, greeting] { links.greeted(greeting); });
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

template <Kind kind>
ucs_status_t Links::on_message(void* self, const void* header, size_t header_size, void* data, size_t size,
                               const ucp_am_recv_param_t* param) {
  const bool is_fetched = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  return static_cast<Links*>(self)->take(kind, header, header_size, data, size, is_fetched);
}

template ucs_status_t Links::on_message<Kind::kMessage>(void*, const void*, size_t, void*, size_t,
                                                        const ucp_am_recv_param_t*);
template ucs_status_t Links::on_message<Kind::kPart>(void*, const void*, size_t, void*, size_t,
                                                     const ucp_am_recv_param_t*);
template ucs_status_t Links::on_message<Kind::kDevicePart>(void*, const void*, size_t, void*, size_t,
                                                           const ucp_am_recv_param_t*);

Incoming::Target Links::place(Link& link, Kind kind, const void* header, size_t header_size, size_t size) {
  switch (kind) {
    case Kind::kMessage:
      return link.incoming.message(header, header_size, size);
    case Kind::kPart:
      return link.incoming.part(header, header_size, size);
    default:
      return link.incoming.device_part(header, header_size, size, allocate_);
  }
}

ucs_status_t Links::take(Kind kind, const void* header, size_t header_size, void* data, size_t size, bool is_fetched) {
  Token token;
  if (header_size >= sizeof token) {
    std::memcpy(&token, header, sizeof token);
  }
  Link* const link = token ? owner_of(token) : nullptr;
  if (link == nullptr) {
    ++services_.counters.dropped;
    return is_fetched ? UCS_ERR_REJECTED : UCS_OK;
  }
  bool is_taken = false;  // UCX owns `data` again
  const auto result = [&] { return is_taken ? UCS_INPROGRESS : is_fetched ? UCS_ERR_REJECTED : UCS_OK; };
  try {
    std::string wrong;
    try {
      if (kind == Kind::kDevicePart && !is_fetched) {
        throw Malformed("a part on a device did not come by rendezvous");
      }
      Incoming::Target target = place(*link, kind, header, header_size, size);
      if (!is_fetched) {
        if (size != 0) {
          std::memcpy(const_cast<void*>(target.memory.data), data, size);
        }
        deliver(*link, target);
        return UCS_OK;
      }
      const ucs_memory_type_t memory_type = services_.device_memory.type_of(target.memory.memory);
      auto owned = std::make_unique<Fetch>(Fetch{this, link->peer, token, std::move(target)});
      Fetch* const fetch = owned.get();
      fetching_.insert(fetch);
      owned.release();
      ucp_request_param_t param{};
      param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
      param.cb.recv_am = &on_fetched;
      param.user_data = fetch;
      param.memory_type = memory_type;
      is_taken = true;
      // UCX may call on_fetched() in here, which deletes `fetch`, and still return a request.
      const ucs_status_ptr_t request =
          ucp_am_recv_data_nbx(worker_.get(), data, const_cast<void*>(fetch->target.memory.data), size, &param);
      if (request == nullptr || UCS_PTR_IS_ERR(request)) {
        fetching_.erase(fetch);
        owned.reset(fetch);
        if (request != nullptr) {
          throw Malformed("a message cannot be fetched: " + ucx::text_of(UCS_PTR_STATUS(request)));
        }
        fetched_.push_back(std::move(*fetch));
      }
      return UCS_INPROGRESS;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {  // Malformed, or of the allocator
      wrong = error.what();
    }
    run_later([this, peer = link->peer, token, wrong] {
      Link* const found = owner_of(token);
      if (found != nullptr && found->peer == peer) {
        reject(peer, wrong);
      }
    });
  } catch (const std::bad_alloc&) {
    mark_broken(link);
  }
  return result();
}

void Links::on_fetched(void* request, ucs_status_t status, size_t /*size*/, void* argument) {
  ucp_request_free(request);
  const std::unique_ptr<Fetch> fetch(static_cast<Fetch*>(argument));
  Links& links = *fetch->links;
  const Token token = fetch->token;
  links.fetching_.erase(fetch.get());
  try {
    if (status == UCS_OK) {
      links.fetched_.push_back(std::move(*fetch));
      return;
    }
    links.run_later([&links, token, wrong = "a message cannot be fetched: " + ucx::text_of(status)] {
      if (const Link* const link = links.owner_of(token)) {
        links.reject(link->peer, wrong);
      }
    });
  } catch (const std::bad_alloc&) {
    links.mark_broken(links.owner_of(token));
  }
}

// Delivers data that was copied from the memory of peers. A peer that gives up this memory first sends a goodbye, which
// names the messages that were read before. So all copied data is checked against the goodbyes that have arrived since.
void Links::deliver_fetched() {
  while (!fetched_.empty()) {
    checked_.push_back(std::move(fetched_.front()));
    fetched_.pop_front();
  }
  for (int i = 0; i < kDrain && ucp_worker_progress(worker_.get()) != 0; ++i) {
  }
  do_later();
  deliver_below(checked_, kEveryPeer, UINT64_MAX);
}

void Links::deliver_below(std::deque<Fetch>& fetches, int peer, uint64_t number) {
  // One at a time, so that the others stay if there is an exception.
  for (size_t i = 0; i < fetches.size();) {
    if (peer != kEveryPeer && (fetches[i].peer != peer || fetches[i].target.number >= number)) {
      ++i;
      continue;
    }
    const Fetch fetch = std::move(fetches[i]);
    fetches.erase(fetches.begin() + static_cast<std::ptrdiff_t>(i));
    Link* const link = owner_of(fetch.token);
    if (link == nullptr) {
      continue;
    }
    try {
      deliver(*link, fetch.target);
    } catch (const Malformed& error) {
      reject(link->peer, error.what());
    } catch (const std::bad_alloc&) {
      mark_broken(link);
    }
  }
}

void Links::deliver(Link& link, const Incoming::Target& target) {
  std::vector<Parts> complete;
  link.incoming.filled(target, complete);
  for (Parts& parts : complete) {
    ++services_.counters.messages_received;
    for (const Part& part : parts) {
      services_.counters.device_bytes += part.memory.is_host() ? 0 : part.size;
    }
    Event event;
    event.peer = link.peer;
    event.parts = std::move(parts);
    services_.inbox.push(std::move(event));
  }
}

std::map<int, std::string> Links::transports() const {
  std::map<int, std::string> found;
  for (const auto& [peer, link] : links_) {
    if (link->endpoint != nullptr && link->is_confirmed) {
      found[peer] = transports_of(link->endpoint);
    }
  }
  return found;
}

}  // namespace rpc_backends::ucx
