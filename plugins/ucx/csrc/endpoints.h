// UCP's endpoints: each is this worker's end of one connection. Needs the transport's lock.
#pragma once

#include <functional>
#include <list>
#include <string>
#include <unordered_map>
#include <utility>

#include "inbox.h"
#include "ucp.h"

namespace rpc_backends::ucx {

class Endpoints {
 public:
  // `on_error`: called inside UCX when a connection has failed.
  using OnError = std::function<void(ucp_ep_h, ucs_status_t)>;
  // `before_close`: called with the peer before a connection is closed by force.
  using BeforeClose = std::function<void(int)>;
  Endpoints(Worker& worker, Inbox& inbox, OnError on_error, BeforeClose before_close)
      : worker_(worker), inbox_(inbox), on_error_(std::move(on_error)), before_close_(std::move(before_close)) {}

  // Sets `endpoint`. Throws TransportError that begins with `problem`.
  void open(int peer, const std::string& address, const std::string& problem, ucp_ep_h& endpoint);
  // Closes it by force: UCX drops what has not left.
  void close(ucp_ep_h endpoint);
  // Closes it once all that was sent on it has left, and at this time in any case: see close_due(). Throws
  // std::bad_alloc; then it stays open.
  void close_flushed(ucp_ep_h endpoint, Clock::time_point until);
  // Closes the endpoints of close_flushed() that are due at this time. It may leave some to its next call, if UCX has
  // much to do.
  void close_due(Clock::time_point now);

  // The peer at the other end; -1 if the endpoint is closed, or to be closed.
  int peer_of(ucp_ep_h endpoint) const;
  bool is_closing() const { return closing_ != 0; }
  bool is_flushing() const { return !flushing_.empty(); }

 private:
  struct Flushing {
    ucp_ep_h endpoint;
    int peer;
    Clock::time_point until;
    int pending = 0;  // 0: everything has left, or cannot leave
    bool is_closed = false;
  };

  void force(ucp_ep_h endpoint);
  // Finishes the steps that UCX has begun of a flush with this number of pending operations. Returns false if UCX has
  // too much else to do.
  bool finish_steps(const int& pending);

  Worker& worker_;
  Inbox& inbox_;
  const OnError on_error_;
  const BeforeClose before_close_;
  std::unordered_map<ucp_ep_h, int> peers_;
  int closing_ = 0;
  std::list<Flushing> flushing_;
};

}  // namespace rpc_backends::ucx
