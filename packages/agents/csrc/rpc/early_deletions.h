// Deletions of RRefs that arrive before torch knows the RRefs. When rpc.remote() has timed out, its caller deletes the
// RRef, but the owner enters it only when the function has ended. torch ignores a deletion before that, keeps the
// value, and waits for the deletion in shutdown(). So such a deletion is done again after the function. A deletion may
// also overtake the request itself if that is large.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>
#include <torch/csrc/distributed/rpc/request_callback.h>
#include <torch/csrc/distributed/rpc/types.h>

#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace rpc_backends {

class EarlyDeletions : public std::enable_shared_from_this<EarlyDeletions> {
 public:
  using RRefId = torch::distributed::rpc::RRefId;
  using ForkId = torch::distributed::rpc::ForkId;
  using RequestCallback = torch::distributed::rpc::RequestCallback;

  // `callback` handles deletions: torch's.
  explicit EarlyDeletions(std::shared_ptr<const RequestCallback> callback) : callback_(std::move(callback)) {}

  // A request of rpc.remote(), from its arrival to its answer. The destructor calls settle().
  class Creation {
   public:
    Creation(std::shared_ptr<EarlyDeletions> deletions, const RRefId& created, const ForkId& forked);
    ~Creation();
    Creation(const Creation&) = delete;
    Creation& operator=(const Creation&) = delete;

    // Deletes the RRef if its deletion has arrived. Call it when the function has returned, also if that was a future,
    // which may never get a value. Throws nothing.
    void settle() const;

    const RRefId id;
    const ForkId fork;

   private:
    const std::shared_ptr<EarlyDeletions> deletions_;
  };

  // Notes a request that arrives, before torch gets it, if it is a deletion. Throws nothing.
  void note(const torch::distributed::rpc::Message& request);
  // The same for the deletion of an RRef.
  void note(const ForkId& fork);

 private:
  // Most deletions are of RRefs that torch has entered; which ones cannot be asked. So the last ones are kept.
  static constexpr size_t kMostKept = 16384;

  struct Entry {
    int creations = 0;  // more than one if the request was repeated
    bool is_deleted = false;
  };

  const std::shared_ptr<const RequestCallback> callback_;
  std::mutex mutex_;
  std::unordered_map<ForkId, Entry, ForkId::Hash> entries_;
  std::unordered_set<ForkId, ForkId::Hash> kept_;  // deletions without an entry
  std::deque<ForkId> kept_order_;
};

}  // namespace rpc_backends
