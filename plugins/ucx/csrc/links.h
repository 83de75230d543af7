// The links to the peers: for each peer a UCP endpoint, and the messages that are sent and received on it.
//
// The first message to a peer opens the link. The link carries messages once the peer has answered the greeting with a
// proof. When the link ends, the peer is lost, and this worker tries to open new links in the background until the peer
// answers one.
//
// Callers hold the transport's lock, because UCX's worker is not thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "inbox.h"
#include "incoming.h"
#include "outgoing.h"
#include "rpc_backends_agents/callback_thread.h"
#include "rpc_backends_agents/fd.h"
#include "rpc_backends_agents/releaser.h"
#include "timers.h"
#include "ucp.h"

namespace rpc_backends::ucx {

class Links {
 public:
  struct Services {
    const Settings& settings;
    Counters& counters;
    Inbox& inbox;
    CallbackThread& callback_thread;
    Releaser& releaser;
    Timers& timers;
    const DeviceMemory& device_memory;
  };

  Links(const Services& services, Worker& worker);
  ~Links();

  void start(int self);
  void set_allocator(DeviceAllocator allocate) { allocate_ = std::move(allocate); }
  void learn(int peer, const std::string& address, const Credentials& credentials);
  void forget(int peer);
  void send(int peer, Parts parts);
  void reject(int peer, const std::string& reason);

  // Makes UCX progress; returns whether there was anything to do.
  bool progress();

  // Called when a peer's process has ended.
  void on_process_end(uint64_t id);

  // Sends a goodbye on all links, and waits until everything is sent, at most until the deadline.
  void close(Clock::time_point deadline);

  // Moves messages that are completely sent to `sent`, so that the caller releases them without the lock.
  void take_sent(std::vector<std::unique_ptr<Outgoing>>& sent);
  bool has_sent() const { return !sent_.empty(); }

  std::map<int, std::string> transports() const;

 private:
  struct Link;
  struct Fetch;
  struct TokenHash {
    size_t operator()(const wire::Token& token) const { return static_cast<size_t>(token.low ^ token.high); }
  };

  // Callbacks that UCX calls with this object as argument.
  static ucs_status_t on_greeting(void* self, const void* header, size_t header_size, void* data, size_t size,
                                  const ucp_am_recv_param_t* param);
  static ucs_status_t on_goodbye(void* self, const void* header, size_t header_size, void* data, size_t size,
                                 const ucp_am_recv_param_t* param);
  template <wire::Kind kind>
  static ucs_status_t on_message(void* self, const void* header, size_t header_size, void* data, size_t size,
                                 const ucp_am_recv_param_t* param);
  static void on_sent(void* request, ucs_status_t status, void* outgoing);
  static void on_fetched(void* request, ucs_status_t status, size_t size, void* fetch);
  static void on_closed(void* request, ucs_status_t status, void* self);
  static void on_flushed(void* request, ucs_status_t status, void* self);
  static void on_error(void* self, ucp_ep_h endpoint, ucs_status_t status);

  ucs_status_t take(wire::Kind kind, const void* header, size_t header_size, void* data, size_t size, bool is_fetched);
  Incoming::Target place(Link& link, wire::Kind kind, const void* header, size_t header_size, size_t size);
  void deliver(Link& link, const Incoming::Target& target);
  void deliver_fetched();
  // Delivers the data in `fetches` that is from this peer and belongs to messages with smaller numbers. The rest stays.
  void deliver_below(std::deque<Fetch>& fetches, int peer, uint64_t number);
  bool do_later();
  void run_later(std::function<void()> task) { later_.push_back(std::move(task)); }
  // Callbacks of UCX must not throw. If memory is short, they mark the link, which may be null, instead of run_later().
  void mark_broken(Link* link) noexcept;
  void end_broken();
  // Makes progress until `is_over` returns true, at most until the deadline; sleeps while there is nothing to do.
  template <typename IsOver>
  void progress_until(Clock::time_point deadline, const IsOver& is_over);

  Link* find(int peer);
  Link* owner_of(const wire::Token& token);
  void open(Link& link);
  void greet(Link& link);
  void greeted(const wire::Greeting& greeting);
  void admit(int peer, const wire::Greeting& greeting);
  void goodbye(const wire::Goodbye& head, const std::string& reason);
  void confirm(Link& link);
  void post(Link& link, std::unique_ptr<Outgoing> outgoing);
  void send_head(Link& link, wire::Kind kind, std::string bytes);
  void say_goodbye(Link& link, bool comes_back, const std::string& reason);
  // Ends the link and reports the peer as lost. `retry`: attempt new links.
  void lose(Link& link, const std::string& reason, bool retry);
  void report_found(Link& link);
  void report_lost(Link& link, const std::string& reason);
  void end_incoming(Link& link);
  void close_endpoint(Link& link);
  void flush(Link& link);
  void schedule_retry(Link& link);
  void watch_process(Link& link);
  void forget_process(Link& link);
  wire::Token new_token();
  void completed(Outgoing& outgoing);

  const Services services_;
  Worker& worker_;
  const size_t max_header_;
  int self_ = -1;
  DeviceAllocator allocate_;
  bool closing_ = false;
  std::mt19937_64 random_{std::random_device{}()};
  std::random_device device_;

  std::unordered_map<int, std::unique_ptr<Link>> links_;
  std::unordered_map<wire::Token, int, TokenHash> tokens_;  // of the peers' links
  std::unordered_map<std::string, int> proofs_;
  std::unordered_map<std::string, wire::Greeting> strangers_;  // greetings whose proof is being looked up, by proof
  std::unordered_map<ucp_ep_h, int> endpoints_;
  std::unordered_map<uint64_t, int> processes_;  // by id in the inbox
  uint64_t next_process_ = Inbox::kFirstId + 1;
  uint64_t next_attempt_ = 1;

  std::unordered_set<Outgoing*> leaving_;  // owned until the destructor
  std::unordered_set<Fetch*> fetching_;    // owned
  std::deque<Fetch> fetched_;              // complete, to be delivered
  std::deque<Fetch> checked_;              // to be delivered next
  std::vector<std::unique_ptr<Outgoing>> sent_;
  std::deque<std::function<void()>> later_;  // tasks that must not run inside a callback of UCX
  int closing_endpoints_ = 0;
  int flushing_endpoints_ = 0;
  bool has_broken_ = false;

  std::mutex answers_mutex_;  // may be locked while the transport's lock is held; never the reverse
  std::vector<std::function<void()>> answers_;
  std::atomic<bool> has_answers_{false};
};

}  // namespace rpc_backends::ucx
