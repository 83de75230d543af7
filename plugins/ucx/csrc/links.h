// The links to the peers: how they open and end. For each peer there is an endpoint, and the messages that are sent and
// received on it. Over a network, large messages have an endpoint of their own: a connection is first in, first out.
//
//   Endpoints   the connections of UCP
//   Outbox      messages that are leaving
//   Arrivals    what is received on the links
//   Strangers   greetings of workers that are not known yet
//   Processes   peers on this host whose processes have ended
//
// The first message to a peer opens the link. The link carries messages once the peer has answered the greeting with a
// proof. When the link ends, the peer is lost, and this worker tries to open new links in the background until the peer
// answers one.
//
// Callers hold the transport's lock, because UCX's worker is not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "arrivals.h"
#include "endpoints.h"
#include "identity.h"
#include "inbox.h"
#include "outbox.h"
#include "processes.h"
#include "rpc_backends_agents/callback_thread.h"
#include "rpc_backends_agents/releaser.h"
#include "strangers.h"
#include "timers.h"
#include "ucp.h"

namespace rpc_backends::ucx {

class Links final : Arrivals::Owner {
 public:
  struct Services {
    const Settings& settings;
    Counters& counters;
    Inbox& inbox;
    CallbackThread& callback_thread;
    Releaser& releaser;
    Timers& timers;
    const DeviceMemory& device_memory;
    const Identity* identity;  // null if workers have no certificates
  };

  Links(const Services& services, Worker& worker);
  ~Links();

  void start(int self);
  void set_allocator(DeviceAllocator allocate) { arrivals_.set_allocator(std::move(allocate)); }
  void learn(int peer, const std::string& address, const Credentials& credentials);
  void forget(int peer);
  void send(int peer, Parts parts);
  void reject(int peer, const std::string& reason) override;
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
  void take_sent(std::vector<std::unique_ptr<Outgoing>>& sent) { outbox_.take_sent(sent); }
  bool has_sent() const { return outbox_.has_sent(); }

  std::map<int, std::string> transports() const;

 private:
  struct TokenHash {
    size_t operator()(const wire::Token& token) const { return static_cast<size_t>(token.low ^ token.high); }
  };

  // Callbacks that UCX calls with this object as argument.
  static ucs_status_t on_greeting(void* self, const void* header, size_t header_size, void* data, size_t size,
                                  const ucp_am_recv_param_t* param);
  static ucs_status_t on_goodbye(void* self, const void* header, size_t header_size, void* data, size_t size,
                                 const ucp_am_recv_param_t* param);
  void on_error(ucp_ep_h endpoint, ucs_status_t status);

  Link* owner_of(const wire::Token& token) override;
  void run_later(std::function<void()> task) override { later_.push_back(std::move(task)); }
  bool do_later() override;
  void mark_broken(Link* link) noexcept override;
  void end_broken();
  // Makes progress until `is_over` returns true, at most until the deadline; sleeps while there is nothing to do.
  template <typename IsOver>
  void progress_until(Clock::time_point deadline, const IsOver& is_over);

  Link* find(int peer);
  void open(Link& link);
  void open_endpoint(Link& link, ucp_ep_h& endpoint);
  // The endpoint for a message.
  ucp_ep_h endpoint_for(Link& link, const Outgoing& outgoing);
  void skip_endpoints(Link& link, uint64_t theirs);
  void greet(Link& link);
  void greeted(const Greeted& greeting);
  // Whether the greeting proves the identity that the peer must have.
  bool is_proved(Link& link, const Greeted& greeting);
  void admit(int peer, const Greeted& greeted);
  void goodbye(const wire::Goodbye& head, const std::string& reason);
  void confirm(Link& link);
  void post(Link& link, std::unique_ptr<Outgoing> outgoing);
  // `on_both`: on the endpoint for large messages, too. The peer then waits for both.
  void say_goodbye(Link& link, bool comes_back, const std::string& reason, bool on_both = false);
  // Ends the link and reports the peer as lost. `retry`: attempt new links.
  void lose(Link& link, const std::string& reason, bool retry);
  void report_found(Link& link);
  void report_lost(Link& link, const std::string& reason);
  void end_incoming(Link& link);
  // Says goodbye, and closes the endpoints once it has left.
  void part(Link& link, bool comes_back, const std::string& reason);
  void close_endpoints(Link& link);
  // Lets UCX finish what it copies from the memory of this peer.
  void finish_copies(int peer);
  void schedule_retry(Link& link);
  wire::Token new_token();

  const Services services_;
  Worker& worker_;
  Endpoints endpoints_;
  Outbox outbox_;
  Arrivals arrivals_;
  Strangers strangers_;
  Processes processes_;
  const size_t max_header_;
  int self_ = -1;
  bool closing_ = false;
  bool has_broken_ = false;
  std::mt19937_64 random_{std::random_device{}()};
  std::random_device device_;
  uint64_t next_attempt_ = 1;
  std::unordered_map<int, std::unique_ptr<Link>> links_;
  std::unordered_map<wire::Token, int, TokenHash> tokens_;  // of the peers' links
  std::unordered_map<std::string, int> proofs_;
  std::deque<std::function<void()>> later_;  // tasks that must not run inside a callback of UCX
};

}  // namespace rpc_backends::ucx
