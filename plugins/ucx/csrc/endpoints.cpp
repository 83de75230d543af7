#include "endpoints.h"

#include <iterator>

namespace rpc_backends::ucx {

namespace {

// The most steps of UCX that a close waits for. A worker that gets messages all the time has always another one.
constexpr int kMostSteps = 64;

// The parameters of an operation after which UCX decrements `count`.
ucp_request_param_t counted_by(int& count) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = [](void* request, ucs_status_t /*status*/, void* counted) {
    --*static_cast<int*>(counted);
    ucp_request_free(request);
  };
  param.user_data = &count;
  return param;
}

bool is_in_progress(ucs_status_ptr_t request) {
  return request != nullptr && !UCS_PTR_IS_ERR(request);
}

}  // namespace

void Endpoints::open(int peer, const std::string& address, const std::string& problem, ucp_ep_h& endpoint) {
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = [](void* self, ucp_ep_h failed, ucs_status_t status) {
    static_cast<Endpoints*>(self)->on_error_(failed, status);
  };
  params.err_handler.arg = this;
  take_log_line();
  // The entry is made first: if memory is short, UCX must not have created the endpoint, because its peer counts it.
  auto entry = peers_.extract(peers_.emplace(nullptr, peer).first);
  check(ucp_ep_create(worker_.get(), &params, &endpoint), problem);
  entry.key() = endpoint;
  peers_.insert(std::move(entry));
}

void Endpoints::close(ucp_ep_h endpoint) {
  const int peer = peer_of(endpoint);
  peers_.erase(endpoint);
  before_close_(peer);
  force(endpoint);
}

void Endpoints::force(ucp_ep_h endpoint) {
  ucp_request_param_t param = counted_by(closing_);
  param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  ++closing_;
  if (!is_in_progress(ucp_ep_close_nbx(endpoint, &param))) {
    --closing_;
  }
  // UCX stops listening in shared memory when the last endpoint there is closed. It hears of new ones again only after
  // it has made progress.
  inbox_.nudge();
}

void Endpoints::close_flushed(ucp_ep_h endpoint, Clock::time_point until) {
  Flushing& flushing = flushing_.emplace_back(Flushing{endpoint, peer_of(endpoint), until});
  peers_.erase(endpoint);
  const ucp_request_param_t param = counted_by(flushing.pending);
  ++flushing.pending;
  if (is_in_progress(ucp_ep_flush_nbx(endpoint, &param))) {
    inbox_.nudge();
  } else {
    --flushing.pending;
    close_due(Clock::time_point::min());
  }
}

void Endpoints::close_due(Clock::time_point now) {
  for (auto flushing = flushing_.begin(); flushing != flushing_.end();) {
    if (!flushing->is_closed && (flushing->pending == 0 || flushing->until <= now)) {
      before_close_(flushing->peer);
      if (finish_steps(flushing->pending)) {
        flushing->is_closed = true;
        force(flushing->endpoint);
      }
    }
    // UCX completes a flush at the latest some time after the endpoint is closed.
    flushing = flushing->is_closed && flushing->pending == 0 ? flushing_.erase(flushing) : std::next(flushing);
  }
}

// UCX puts some steps of a flush off until its next progress, and takes them even if the endpoint is closed before:
// they would use its memory, which is freed then. None is left when UCX has found nothing to do twice in a row: the
// second time, it takes what the first time has put off.
bool Endpoints::finish_steps(const int& pending) {
  int idle = 0;
  for (int i = 0; i < kMostSteps && pending != 0 && idle < 2; ++i) {
    idle = ucp_worker_progress(worker_.get()) == 0 ? idle + 1 : 0;
  }
  return pending == 0 || idle == 2;
}

int Endpoints::peer_of(ucp_ep_h endpoint) const {
  const auto open = peers_.find(endpoint);
  return open == peers_.end() ? -1 : open->second;
}

}  // namespace rpc_backends::ucx
