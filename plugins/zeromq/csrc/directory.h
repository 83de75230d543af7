// The workers that are known: who may connect, whose public key is whose, and what may be sent to whom.
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
  // `key` is the worker's from now on, and any earlier one is nobody's. Without encryption it is empty.
  void learn(int worker, const std::string& key);
  void forget(int worker);

  // The worker whose key it is.
  std::optional<int> owner(const std::string& key) const;

  // Whether messages from the worker are taken. Without encryption anybody is believed, except that a
  // worker that has left does not come back before it is learned again.
  bool admits(int worker) const;

  // The bytes that one message to the worker may have, as it says; it would end the connection for more.
  void limit(int worker, uint64_t max_message);
  uint64_t max_message(int worker) const;

  // Workers that are known.
  size_t size() const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::string, int> owners_;
  std::unordered_map<int, std::string> keys_;
  std::unordered_set<int> left_;
  std::unordered_map<int, uint64_t> max_messages_;
};

}  // namespace rpc_backends::zeromq
