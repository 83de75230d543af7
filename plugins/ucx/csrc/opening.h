// How a link opens: its connection, the greeting on it, and further attempts to reach a lost peer. Needs the
// transport's lock.
#pragma once

#include <cstdint>
#include <random>
#include <string_view>

#include "endpoints.h"
#include "link_table.h"
#include "outbox.h"
#include "processes.h"
#include "services.h"
#include "teardown.h"

namespace rpc_backends::ucx {

class Opening {
 public:
  Opening(const Services& services, LinkTable& table, Endpoints& endpoints, Outbox& outbox, Processes& processes,
          Teardown& teardown)
      : services_(services),
        table_(table),
        endpoints_(endpoints),
        outbox_(outbox),
        processes_(processes),
        teardown_(teardown) {}

  // Sets this worker's id. Throws TransportError.
  void start(int self);
  bool is_started() const { return self_ != -1; }
  // No more links open, but for messages that are sent.
  void stop() { is_stopped_ = true; }
  bool is_stopped() const { return is_stopped_; }

  // Each throws TransportError.
  void open(Link& link);
  void open_endpoint(Link& link, ucp_ep_h& endpoint);
  // `theirs`: how many endpoints to this worker the peer has opened.
  void skip_endpoints(Link& link, uint64_t theirs);
  void greet(Link& link);

  // Opens the link after a pause, which doubles with each attempt.
  void retry(Link& link);
  void lose_and_retry(Link& link, std::string_view reason);

 private:
  wire::Token new_token();
  void open_or_retry(Link& link);

  const Services& services_;
  LinkTable& table_;
  Endpoints& endpoints_;
  Outbox& outbox_;
  Processes& processes_;
  Teardown& teardown_;
  int self_ = -1;
  bool is_stopped_ = false;
  std::mt19937_64 random_{std::random_device{}()};
  std::random_device device_;
};

}  // namespace rpc_backends::ucx
