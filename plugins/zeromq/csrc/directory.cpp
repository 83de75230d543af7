#include "directory.h"

namespace rpc_backends::zeromq {

void Directory::learn(int worker, const std::string& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  left_.erase(worker);
  std::string& current = keys_[worker];
  if (current != key) {
    owners_.erase(current);
    current = key;
  }
  if (!key.empty()) {
    owners_[key] = worker;
  }
}

void Directory::forget(int worker) {
  std::lock_guard<std::mutex> lock(mutex_);
  left_.insert(worker);
  max_messages_.erase(worker);
  const auto entry = keys_.find(worker);
  if (entry != keys_.end()) {
    owners_.erase(entry->second);
    keys_.erase(entry);
  }
}

std::string Directory::key(int worker) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = keys_.find(worker);
  return entry == keys_.end() ? "" : entry->second;
}

std::optional<int> Directory::owner(const std::string& key) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = owners_.find(key);
  return entry == owners_.end() ? std::nullopt : std::optional<int>(entry->second);
}

bool Directory::admits(int worker) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return left_.count(worker) == 0;
}

void Directory::limit(int worker, uint64_t max_message) {
  std::lock_guard<std::mutex> lock(mutex_);
  max_messages_[worker] = max_message;
}

uint64_t Directory::max_message(int worker) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = max_messages_.find(worker);
  return entry == max_messages_.end() ? UINT64_MAX : entry->second;
}

size_t Directory::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return keys_.size();
}

}  // namespace rpc_backends::zeromq
