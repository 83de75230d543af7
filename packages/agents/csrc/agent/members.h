// The workers of the group, which torch looks up by name or by id.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <deque>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace rpc_backends {

class Members {
 public:
  using WorkerInfo = torch::distributed::rpc::WorkerInfo;

  // Sets the function that is called when an unknown worker is looked up; it may add workers.
  void on_unknown(std::function<void()> refresh);
  // Calls that function; returns false if there is none.
  bool refresh() const;

  void add(const std::string& name, int id);
  // `how`: how the worker has left, for messages.
  void remove(int id, const std::string& how);

  // Throw std::runtime_error with the known names if there is no such worker. An id may be that of a worker that has
  // left: torch looks up the owners of RRefs, and messages to such a worker fail with the reason.
  const WorkerInfo& by_name(const std::string& name) const;
  const WorkerInfo& by_id(int id) const;
  std::vector<WorkerInfo> all() const;

  // The name of a worker, also of one that has left; empty if it is unknown.
  std::string name_of(int id) const;
  // The name of a worker in quotes, or "worker ID" if the name is unknown; for messages.
  std::string called(int id) const;
  // Whether a worker had this id, and no worker has it now.
  bool has_left(int id) const;
  // How that worker has left; empty if none has.
  std::string how_it_left(int id) const;

 private:
  struct Left {
    std::shared_ptr<WorkerInfo> info;
    std::string how;
  };

  const WorkerInfo* find(const std::string& name) const;
  const WorkerInfo* find(int id) const;
  // The last worker that has left with this id.
  const Left* find_left(int id) const;
  template <typename Key>
  const WorkerInfo& get(const Key& key, const std::string& shown) const;

  mutable std::shared_mutex mutex_;
  std::function<void()> refresh_;
  std::unordered_map<int, std::shared_ptr<WorkerInfo>> by_id_;
  std::unordered_map<std::string, std::shared_ptr<WorkerInfo>> by_name_;
  // Torch keeps references to the WorkerInfo of workers that have left.
  std::deque<Left> left_;
};

}  // namespace rpc_backends
