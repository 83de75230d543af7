// Sends messages on links: at once, or as soon as the peer has answered the greeting. Needs the transport's lock.
#pragma once

#include <memory>

#include "deferred_tasks.h"
#include "link_table.h"
#include "opening.h"
#include "outbox.h"
#include "services.h"
#include "teardown.h"

namespace rpc_backends::ucx {

class Sender {
 public:
  Sender(const Services& services, const Worker& worker, LinkTable& table, DeferredTasks& deferred, Teardown& teardown,
         Opening& opening, Outbox& outbox);

  // Does not need the lock. Throws TransportError.
  std::unique_ptr<Outgoing> prepare(Parts parts) const;
  // Opens the link if it is not open. Throws TransportError; then the caller keeps the message.
  void send(Link& link, std::unique_ptr<Outgoing>&& outgoing);
  // Sends what waits for the answer to the greeting.
  void flush(Link& link);

 private:
  void post(Link& link, std::unique_ptr<Outgoing>&& outgoing);
  void lose_later(Link& link, ucs_status_t status);
  ucp_ep_h endpoint_for(Link& link, const Outgoing& outgoing);

  const Services& services_;
  LinkTable& table_;
  DeferredTasks& deferred_;
  Teardown& teardown_;
  Opening& opening_;
  Outbox& outbox_;
  const size_t max_header_;
};

}  // namespace rpc_backends::ucx
