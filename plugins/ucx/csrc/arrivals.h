// What arrives on the links: UCX copies large payloads from the memory of peers, and complete messages go to the inbox.
// Needs the transport's lock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string_view>
#include <unordered_set>

#include "deferred_tasks.h"
#include "incoming.h"
#include "link_table.h"
#include "services.h"

namespace rpc_backends::ucx {

class Arrivals {
 public:
  // Ends the link with a peer that has sent invalid data.
  using Reject = std::function<void(int peer, std::string_view reason)>;

  Arrivals(const Services& services, Worker& worker, LinkTable& table, DeferredTasks& deferred, Reject reject);
  ~Arrivals();

  void set_allocator(DeviceAllocator allocate) { allocate_ = std::move(allocate); }

  // Delivers data that was copied from the memory of peers; returns whether there was any.
  bool deliver_fetched();
  // Delivers the copied data of this peer that belongs to messages with smaller numbers. The rest stays.
  void deliver_below(int peer, uint64_t small, uint64_t large);
  // Whether UCX copies from the memory of a peer, or of this one.
  bool is_fetching() const { return !fetching_.empty(); }
  // Lets UCX finish what it copies from the memory of this peer.
  void finish_copies(int peer);

 private:
  struct Fetch;

  template <wire::Kind kind>
  static ucs_status_t on_message(void* self, const void* header, size_t header_size, void* data, size_t size,
                                 const ucp_am_recv_param_t* param);
  static void on_fetched(void* request, ucs_status_t status, size_t size, void* fetch);

  ucs_status_t take(wire::Kind kind, const void* header, size_t header_size, void* data, size_t size, bool is_fetched);
  Incoming::Target place(Link& link, wire::Kind kind, const void* header, size_t header_size, size_t size);
  void deliver(Link& link, const Incoming::Target& target);
  bool is_fetching(int peer) const;
  void deliver_below(std::deque<Fetch>& fetches, int peer, uint64_t small, uint64_t large);

  const Services& services_;
  Worker& worker_;
  LinkTable& table_;
  DeferredTasks& deferred_;
  const Reject reject_;
  DeviceAllocator allocate_;
  std::unordered_set<Fetch*> fetching_;  // owned
  std::deque<Fetch> fetched_;            // complete, to be delivered
  std::deque<Fetch> checked_;            // to be delivered next
};

}  // namespace rpc_backends::ucx
