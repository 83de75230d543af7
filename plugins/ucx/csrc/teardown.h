// How a link ends: this worker closes its connection, and tells the peer, the agent, or both. Needs the transport's
// lock.
#pragma once

#include <string_view>

#include "endpoints.h"
#include "link_table.h"
#include "outbox.h"
#include "services.h"

namespace rpc_backends::ucx {

class Teardown {
 public:
  Teardown(const Services& services, LinkTable& table, Endpoints& endpoints, Outbox& outbox)
      : services_(services), table_(table), endpoints_(endpoints), outbox_(outbox) {}

  // Closes the connection to the peer at once, drops what waits for it, and reports the peer as lost. Timers of this
  // attempt find nothing. If memory is short for the report, end_later() repeats it.
  void lose(Link& link, std::string_view reason);
  // Memory is short, so Links::end_broken() ends the link, as soon as it has enough.
  void end_later(Link& link);
  // Closes the connection to the peer at once.
  void close(Link& link);
  void close_skipped(Link& link);
  // Drops what waits for the peer.
  void drop_queue(Link& link);
  // Takes no more messages from the peer, until it greets again.
  void end_incoming(Link& link);
  // The same, says goodbye, and closes the connection once the goodbye has left. `comes_back`: the peer may greet
  // again.
  void part(Link& link, bool comes_back, std::string_view reason);
  // Says goodbye when the transport is closed. The caller then waits until all connections are closed.
  void leave(Link& link);

 private:
  void report_lost(Link& link, std::string_view reason);
  // `on_both`: on the endpoint for large messages, too. The peer then waits for both.
  void say_goodbye(Link& link, bool comes_back, std::string_view reason, bool on_both);

  const Services& services_;
  LinkTable& table_;
  Endpoints& endpoints_;
  Outbox& outbox_;
};

}  // namespace rpc_backends::ucx
