// UCP's endpoints: each is this worker's end of one connection. Needs the transport's lock.
#pragma once

#include <functional>
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
  Endpoints(Worker& worker, Inbox& inbox, OnError on_error)
      : worker_(worker), inbox_(inbox), on_error_(std::move(on_error)) {}

  // Sets `endpoint`. Throws TransportError that begins with `problem`.
  void open(int peer, const std::string& address, const std::string& problem, ucp_ep_h& endpoint);
  // Closes it by force: UCX drops what has not left.
  void close(ucp_ep_h endpoint);
  // Begins to send what has not left.
  void flush(ucp_ep_h endpoint);

  // The peer at the other end; -1 if the endpoint is closed.
  int peer_of(ucp_ep_h endpoint) const;
  bool is_closing() const { return closing_ != 0; }
  bool is_flushing() const { return flushing_ != 0; }

 private:
  Worker& worker_;
  Inbox& inbox_;
  const OnError on_error_;
  std::unordered_map<ucp_ep_h, int> peers_;
  int closing_ = 0;
  int flushing_ = 0;
};

}  // namespace rpc_backends::ucx
