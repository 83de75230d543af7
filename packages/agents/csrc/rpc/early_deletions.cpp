#include "rpc/early_deletions.h"

#include <torch/csrc/distributed/rpc/rref_proto.h>

#include <utility>

#include "base/log.h"

namespace rpc_backends {

namespace rpc = torch::distributed::rpc;

EarlyDeletions::Creation::Creation(std::shared_ptr<EarlyDeletions> deletions, const RRefId& created,
                                   const ForkId& forked)
    : id(created), fork(forked), deletions_(std::move(deletions)) {
  const std::lock_guard<std::mutex> lock(deletions_->mutex_);
  Entry& entry = deletions_->entries_[fork];
  ++entry.creations;
  entry.is_deleted = entry.is_deleted || deletions_->kept_.count(fork) > 0;
}

EarlyDeletions::Creation::~Creation() {
  settle();
  const std::lock_guard<std::mutex> lock(deletions_->mutex_);
  const auto entry = deletions_->entries_.find(fork);
  if (--entry->second.creations == 0) {
    deletions_->entries_.erase(entry);
  }
}

void EarlyDeletions::Creation::settle() const {
  {
    const std::lock_guard<std::mutex> lock(deletions_->mutex_);
    if (!deletions_->entries_.find(fork)->second.is_deleted) {
      return;
    }
  }
  contained("while deleting an RRef", [&] {
    const auto deletion = rpc::RRefUserDelete(id, fork).toMessage();
    (void)(*deletions_->callback_)(*deletion, {});
  });
}

void EarlyDeletions::note(const rpc::Message& request) {
  if (request.type() != rpc::MessageType::RREF_USER_DELETE) {
    return;
  }
  // torch answers a request that it cannot read with an error.
  (void)error_in([&] { note(rpc::RRefUserDelete::fromMessage(request)->forkId()); });
}

void EarlyDeletions::note(const ForkId& fork) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const auto entry = entries_.find(fork); entry != entries_.end()) {
    entry->second.is_deleted = true;
    return;
  }
  if (!kept_.insert(fork).second) {
    return;
  }
  kept_order_.push_back(fork);
  if (kept_order_.size() > kMostKept) {
    kept_.erase(kept_order_.front());
    kept_order_.pop_front();
  }
}

}  // namespace rpc_backends
