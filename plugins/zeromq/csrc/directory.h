// The known workers: their public keys, whether they may connect, and the message size that each accepts.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace rpc_backends::zeromq {

class Directory {
 public:
  // Sets the worker's key, and forgets its earlier one. Without encryption `key` is empty.
  void learn(int worker, const std::string& key);
  void forget(int worker);

  // Returns the key of a worker; "" if it is not known.
  std::string key(int worker) const;

  // Returns the worker that has the key.
  std::optional<int> owner(const std::string& key) const;

  // Whether to accept messages from the worker. Without encryption every worker is accepted, except one that has
  // left and was not learned again.
  bool admits(int worker) const;

  // The largest message that the worker accepts, in bytes. It would end the connection for a larger one.
  void limit(int worker, uint64_t max_message);
  uint64_t max_message(int worker) const;

  // The number of known workers.
  size_t size() const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::string, int> owners_;
  std::unordered_map<int, std::string> keys_;
  std::unordered_set<int> left_;
  std::unordered_map<int, uint64_t> max_messages_;
};

}  // namespace rpc_backends::zeromq
