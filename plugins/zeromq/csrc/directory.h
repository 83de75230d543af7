// Who may connect: the workers that are known, and whose public key is whose.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace rpc_backends::zeromq {

class Directory {
 public:
  // `key` is the worker's from now on, and any earlier one is nobody's. Without encryption it is empty.
  void learn(int worker, const std::string& key);
  void forget(int worker);

  // The worker whose key it is.
  std::optional<int> owner(const std::string& key) const;

  // Whether messages from the worker are taken. Without encryption anybody is believed, except that a
  // worker that has left does not come back before it is learned again.
  bool admits(int worker) const;

  // Workers that are known.
  size_t size() const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::string, int> owners_;
  std::unordered_map<int, std::string> keys_;
  std::unordered_set<int> left_;
};

}  // namespace rpc_backends::zeromq
