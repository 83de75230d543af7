// Names of functions and workers, each kept once, so that a recorded call has a number in place of a text.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace rpc_backends {

// The names of the process. They are never removed, so that a number stays valid; their count and length are limited,
// because a peer chooses the names of the functions that it calls.
class Names {
 public:
  static constexpr size_t kMostNames = 16384;
  static constexpr size_t kMaxLength = 127;

  static Names& instance() {
    static auto* const names = new Names();  // never destroyed: threads use it until the process ends
    return *names;
  }

  // Returns the number of a name; 0, the number of the empty name, if there are too many. Of a name that is too long,
  // only the end is kept, which says more than the start.
  uint32_t number_of(std::string_view name) {
    if (name.size() > kMaxLength) {
      name.remove_prefix(name.size() - kMaxLength);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto [entry, is_new] = numbers_.try_emplace(std::string(name), static_cast<uint32_t>(names_.size()));
    if (is_new) {
      if (names_.size() >= kMostNames) {
        numbers_.erase(entry);
        return 0;
      }
      names_.push_back(&entry->first);
    }
    return entry->second;
  }

  std::string name_of(uint32_t number) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return number < names_.size() ? *names_[number] : std::string();
  }

 private:
  Names() { number_of({}); }

  mutable std::mutex mutex_;
  std::unordered_map<std::string, uint32_t> numbers_;
  std::vector<const std::string*> names_;  // keys of the map, which stay where they are
};

}  // namespace rpc_backends
