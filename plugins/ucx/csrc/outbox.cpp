#include "outbox.h"

#include <algorithm>
#include <utility>

namespace rpc_backends::ucx {

using namespace wire;

namespace {

// How long to keep the memory of a message that could not be sent. Its receiver may still be copying it.
constexpr std::chrono::seconds kReadTime{5};

}  // namespace

// The receivers of messages that are still leaving may copy them, so these are never released.
Outbox::~Outbox() {
  for (std::unique_ptr<Outgoing>& message : leaving_) {
    (void)message.release();
  }
}

ucs_status_t Outbox::post(ucp_ep_h endpoint, int peer, Token token, uint64_t number,
                          std::unique_ptr<Outgoing>&& owned) {
  Outgoing& outgoing = *owned;
  outgoing.outbox = this;
  outgoing.peer = peer;
  outgoing.number = number;
  const auto pieces = outgoing.pieces(token, number);
  ucs_status_t status = UCS_OK;
  outgoing.pending = 1;
  outgoing.place = leaving_.insert(leaving_.end(), nullptr);
  *outgoing.place = std::move(owned);
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
    const ucs_status_ptr_t request = ucp_am_send_nbx(endpoint, static_cast<unsigned>(piece.kind), piece.header,
                                                     piece.header_size, piece.data, piece.size, &param);
    if (request == nullptr) {
      --outgoing.pending;
    } else if (UCS_PTR_IS_ERR(request)) {
      --outgoing.pending;
      status = UCS_PTR_STATUS(request);
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
  return status;
}

void Outbox::completed(Outgoing& outgoing) {
  if (--outgoing.pending != 0) {
    return;
  }
  const auto place = outgoing.place;
  if (!outgoing.has_failed) {
    sent_.splice(sent_.end(), leaving_, place);
    return;
  }
  failed_.splice(failed_.end(), leaving_, place);
  try {
    services_.timers.at(Clock::now() + kReadTime, [this, place] { sent_.splice(sent_.end(), failed_, place); });
  } catch (const std::bad_alloc&) {  // it stays until the transport ends
  }
}

void Outbox::on_sent(void* request, ucs_status_t status, void* argument) {
  Outgoing& outgoing = *static_cast<Outgoing*>(argument);
  // After a failed send, UCX reports the error of the endpoint, unless the endpoint was closed.
  outgoing.has_failed = outgoing.has_failed || status != UCS_OK;
  ucp_request_free(request);
  outgoing.outbox->completed(outgoing);
}

void Outbox::send_head(ucp_ep_h endpoint, Kind kind, const std::string& bytes, std::string data) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_USER_DATA;
  // UCX reads the data until the request is complete.
  auto kept = std::make_unique<std::string>(std::move(data));
  param.user_data = kept.get();
  param.flags = UCP_AM_SEND_FLAG_COPY_HEADER | UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = [](void* request, ucs_status_t /*status*/, void* kept) {
    delete static_cast<std::string*>(kept);
    ucp_request_free(request);
  };
  const ucs_status_ptr_t request = ucp_am_send_nbx(endpoint, static_cast<unsigned>(kind), bytes.data(), bytes.size(),
                                                   kept->empty() ? nullptr : kept->data(), kept->size(), &param);
  if (request != nullptr && !UCS_PTR_IS_ERR(request)) {
    (void)kept.release();
    services_.inbox.nudge();
  }
}

uint64_t Outbox::first_leaving(int peer, uint64_t next) const {
  for (const std::unique_ptr<Outgoing>& outgoing : leaving_) {
    if (outgoing->peer == peer && (outgoing->number < kFirstLarge) == (next < kFirstLarge)) {
      next = std::min(next, outgoing->number);
    }
  }
  return next;
}

}  // namespace rpc_backends::ucx
