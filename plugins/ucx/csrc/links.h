// The links to the peers. For each peer there is an endpoint, and the messages that are sent and received on it. Over a
// network, large messages have an endpoint of their own: a connection is first in, first out.
//
//   LinkTable      the links
//   Endpoints      the connections of UCP
//   Outbox         messages that are leaving
//   Arrivals       what is received on the links
//   Processes      peers on this host whose processes have ended
//   Teardown       how a link ends
//   Opening        how a link opens; uses Teardown
//   Sender         sends messages; uses Opening and Teardown
//   Handshake      what peers greet with; uses Sender, Opening and Teardown
//   DeferredTasks  what callbacks of UCX leave for later
//
// The first message to a peer opens the link. The link carries messages once the peer has answered the greeting with a
// proof. When the link ends, the peer is lost, and this worker tries to open new links in the background until the peer
// answers one.
//
// Callers hold the transport's lock, because UCX's worker is not thread-safe. Messages are released without it, because
// their owners may need other locks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "arrivals.h"
#include "deferred_tasks.h"
#include "endpoints.h"
#include "handshake.h"
#include "link_table.h"
#include "opening.h"
#include "outbox.h"
#include "processes.h"
#include "sender.h"
#include "services.h"
#include "teardown.h"

namespace rpc_backends::ucx {

class Links {
 public:
  Links(const Services& services, Worker& worker);
  ~Links();

  void start(int self) { opening_.start(self); }
  void set_allocator(DeviceAllocator allocate) { arrivals_.set_allocator(std::move(allocate)); }
  void learn(int peer, const std::string& address, const Credentials& credentials);
  void forget(int peer);
  // As in Sender.
  std::unique_ptr<Outgoing> prepare(Parts parts) const { return sender_.prepare(std::move(parts)); }
  void send(int peer, std::unique_ptr<Outgoing>&& outgoing);
  // Ends the link with a peer that has sent invalid data.
  void reject(int peer, std::string_view reason);
  // Ends the links with peers whose certificates are revoked.
  void end_revoked();

  // Makes UCX progress; returns whether there was anything to do.
  bool progress();
  // Whether UCX copies from the memory of a peer.
  bool is_fetching() const { return arrivals_.is_fetching(); }

  // Called when a peer's process has ended.
  void on_process_end(uint64_t id);

  // Sends a goodbye on all links, and waits until everything is sent, at most until the deadline.
  void close(Clock::time_point deadline);

  // As in Outbox.
  void take_sent(Messages& sent) { outbox_.take_sent(sent); }
  bool has_sent() const { return outbox_.has_sent(); }

  std::map<int, std::string> transports() const;

 private:
  // Called by UCX with this object as argument.
  static ucs_status_t on_goodbye(void* self, const void* header, size_t header_size, void* data, size_t size,
                                 const ucp_am_recv_param_t* param);
  void on_error(ucp_ep_h endpoint, ucs_status_t status);

  void goodbye(const wire::Goodbye& head, const std::string& reason);
  void end_revoked(Link& link);
  // Ends the links that must end because memory was short. If it is short again, the next call repeats that.
  void end_broken();
  // Makes progress until `is_over` returns true, at most until the deadline; sleeps while there is nothing to do.
  template <typename IsOver>
  void progress_until(Clock::time_point deadline, const IsOver& is_over);

  const Services services_;
  Worker& worker_;
  LinkTable table_;
  DeferredTasks deferred_;
  Endpoints endpoints_;
  Outbox outbox_;
  Arrivals arrivals_;
  Processes processes_;
  Teardown teardown_;
  Opening opening_;
  Sender sender_;
  Handshake handshake_;
};

}  // namespace rpc_backends::ucx
