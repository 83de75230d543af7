// What arrives on the links: UCX copies large payloads from the memory of peers, and complete messages go to the inbox.
// Needs the transport's lock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <unordered_set>

#include "inbox.h"
#include "incoming.h"
#include "ucp.h"

namespace rpc_backends::ucx {

struct Link;

class Arrivals {
 public:
  // What the links do for this object. Callbacks of UCX must not throw and must not end links: they use run_later(),
  // or, if memory is short, mark_broken(), whose link may be null.
  class Owner {
   public:
    virtual Link* owner_of(const wire::Token& token) = 0;
    virtual void reject(int peer, const std::string& reason) = 0;
    virtual void run_later(std::function<void()> task) = 0;
    virtual bool do_later() = 0;
    virtual void mark_broken(Link* link) noexcept = 0;

   protected:
    ~Owner() = default;
  };

  Arrivals(Owner& owner, Worker& worker, Inbox& inbox, Counters& counters, const DeviceMemory& device_memory);
  ~Arrivals();

  void set_allocator(DeviceAllocator allocate) { allocate_ = std::move(allocate); }

  // Delivers data that was copied from the memory of peers; returns whether there was any.
  bool deliver_fetched();
  // Delivers the copied data of this peer that belongs to messages with smaller numbers. The rest stays.
  void deliver_below(int peer, uint64_t small, uint64_t large);
  // Whether UCX copies from the memory of a peer, or of this one.
  bool is_fetching() const { return !fetching_.empty(); }
  bool is_fetching(int peer) const;

 private:
  struct Fetch;

  template <wire::Kind kind>
  static ucs_status_t on_message(void* self, const void* header, size_t header_size, void* data, size_t size,
                                 const ucp_am_recv_param_t* param);
  static void on_fetched(void* request, ucs_status_t status, size_t size, void* fetch);

  ucs_status_t take(wire::Kind kind, const void* header, size_t header_size, void* data, size_t size, bool is_fetched);
  Incoming::Target place(Link& link, wire::Kind kind, const void* header, size_t header_size, size_t size);
  void deliver(Link& link, const Incoming::Target& target);
  void deliver_below(std::deque<Fetch>& fetches, int peer, uint64_t small, uint64_t large);

  Owner& owner_;
  Worker& worker_;
  Inbox& inbox_;
  Counters& counters_;
  const DeviceMemory& device_memory_;
  DeviceAllocator allocate_;
  std::unordered_set<Fetch*> fetching_;  // owned
  std::deque<Fetch> fetched_;            // complete, to be delivered
  std::deque<Fetch> checked_;            // to be delivered next
};

}  // namespace rpc_backends::ucx
