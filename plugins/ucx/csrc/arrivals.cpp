#include "arrivals.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

namespace rpc_backends::ucx {

using namespace wire;

namespace {

// After this many calls of ucp_worker_progress(), UCX has handled everything that was in its queue before them.
constexpr int kDrain = 64;
constexpr int kEveryPeer = -1;
// How long a copy from the memory of a peer may take before its connection is closed anyway.
constexpr std::chrono::seconds kCopyTime{5};

}  // namespace

// A payload that is being received.
struct Arrivals::Fetch {
  Arrivals* arrivals;
  int peer;
  Token token;
  Incoming::Target target;
};

Arrivals::Arrivals(const Services& services, Worker& worker, LinkTable& table, DeferredTasks& deferred, Reject reject)
    : services_(services), worker_(worker), table_(table), deferred_(deferred), reject_(std::move(reject)) {
  worker_.handle(Kind::kMessage, &on_message<Kind::kMessage>, this);
  worker_.handle(Kind::kPart, &on_message<Kind::kPart>, this);
  worker_.handle(Kind::kDevicePart, &on_message<Kind::kDevicePart>, this);
}

// The UCX worker is destroyed already, so UCX uses none of this any more.
Arrivals::~Arrivals() {
  for (Fetch* const fetch : fetching_) {
    delete fetch;
  }
}

template <Kind kind>
ucs_status_t Arrivals::on_message(void* self, const void* header, size_t header_size, void* data, size_t size,
                                  const ucp_am_recv_param_t* param) {
  const bool is_fetched = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  return static_cast<Arrivals*>(self)->take(kind, header, header_size, data, size, is_fetched);
}

Incoming::Target Arrivals::place(Link& link, Kind kind, const void* header, size_t header_size, size_t size) {
  PartOfMessage head;  // a message begins like it
  if (header_size < sizeof head) {
    throw Malformed("a header is too short");
  }
  std::memcpy(&head, header, sizeof head);
  Incoming& incoming = link.incoming(head.number);
  switch (kind) {
    case Kind::kMessage:
      return incoming.message(header, header_size, size);
    case Kind::kPart:
      return incoming.part(header, header_size, size);
    default:
      return incoming.device_part(header, header_size, size, allocate_);
  }
}

ucs_status_t Arrivals::take(Kind kind, const void* header, size_t header_size, void* data, size_t size,
                            bool is_fetched) {
  Token token;
  if (header_size >= sizeof token) {
    std::memcpy(&token, header, sizeof token);
  }
  Link* const link = token ? table_.of_token(token) : nullptr;
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
      (void)owned.release();
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
          throw Malformed("a message cannot be fetched: " + text_of(UCS_PTR_STATUS(request)));
        }
        fetched_.push_back(std::move(*fetch));
      }
      return UCS_INPROGRESS;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {  // Malformed, or of the allocator
      wrong = error.what();
    }
    deferred_.add([this, peer = link->peer, token, wrong] {
      const Link* const link = table_.of_token(token);
      if (link != nullptr && link->peer == peer) {
        reject_(peer, wrong);
      }
    });
  } catch (const std::bad_alloc&) {
    table_.mark_broken(link);
  }
  return result();
}

void Arrivals::on_fetched(void* request, ucs_status_t status, size_t /*size*/, void* argument) {
  ucp_request_free(request);
  const std::unique_ptr<Fetch> fetch(static_cast<Fetch*>(argument));
  Arrivals& arrivals = *fetch->arrivals;
  const Token token = fetch->token;
  arrivals.fetching_.erase(fetch.get());
  try {
    if (status == UCS_OK) {
      arrivals.fetched_.push_back(std::move(*fetch));
      return;
    }
    arrivals.deferred_.add([&arrivals, token, wrong = "a message cannot be fetched: " + text_of(status)] {
      if (const Link* const link = arrivals.table_.of_token(token)) {
        arrivals.reject_(link->peer, wrong);
      }
    });
  } catch (const std::bad_alloc&) {
    arrivals.table_.mark_broken(arrivals.table_.of_token(token));
  }
}

// A peer that gives up its memory first sends a goodbye, which names the messages that were read before. So all copied
// data is checked against the goodbyes that have arrived since.
bool Arrivals::deliver_fetched() {
  bool any = false;
  while (!fetched_.empty() || !checked_.empty()) {
    while (!fetched_.empty()) {
      checked_.push_back(std::move(fetched_.front()));
      fetched_.pop_front();
    }
    for (int i = 0; i < kDrain && ucp_worker_progress(worker_.get()) != 0; ++i) {
    }
    deferred_.run();
    deliver_below(checked_, kEveryPeer, UINT64_MAX, UINT64_MAX);
    any = true;
  }
  return any;
}

void Arrivals::deliver_below(int peer, uint64_t small, uint64_t large) {
  deliver_below(checked_, peer, small, large);
  deliver_below(fetched_, peer, small, large);
}

bool Arrivals::is_fetching(int peer) const {
  return std::any_of(fetching_.begin(), fetching_.end(), [peer](const Fetch* fetch) { return fetch->peer == peer; });
}

void Arrivals::finish_copies(int peer) {
  // UCX aborts the process if an endpoint is destroyed while it copies from the peer's memory.
  for (const auto end = Clock::now() + kCopyTime; is_fetching(peer) && Clock::now() < end;) {
    if (ucp_worker_progress(worker_.get()) == 0) {
      break;  // it waits for the peer, and does not copy
    }
  }
}

void Arrivals::deliver_below(std::deque<Fetch>& fetches, int peer, uint64_t small, uint64_t large) {
  // One at a time, so that the others stay if there is an exception.
  for (size_t i = 0; i < fetches.size();) {
    const uint64_t number = fetches[i].target.number;
    if (peer != kEveryPeer && (fetches[i].peer != peer || number >= (number < kFirstLarge ? small : large))) {
      ++i;
      continue;
    }
    const Fetch fetch = std::move(fetches[i]);
    fetches.erase(fetches.begin() + static_cast<std::ptrdiff_t>(i));
    Link* const link = table_.of_token(fetch.token);
    if (link == nullptr) {
      continue;
    }
    try {
      deliver(*link, fetch.target);
    } catch (const Malformed& error) {
      reject_(link->peer, error.what());
    } catch (const std::bad_alloc&) {
      table_.mark_broken(link);
    }
  }
}

void Arrivals::deliver(Link& link, const Incoming::Target& target) {
  std::vector<Parts> complete;
  link.incoming(target.number).filled(target, complete);
  if (target.number < kFirstLarge) {
    services_.inbox.note_small();
  }
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

}  // namespace rpc_backends::ucx
