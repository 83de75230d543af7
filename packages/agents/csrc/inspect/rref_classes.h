// The classes of the values of RRefs, as far as messages have said them. A call through an RRef has the name of the
// method but not of the class: torch asks for the class before the first call, and this remembers the answer.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "inspect/pickled_call.h"

namespace rpc_backends {

// The classes that this process knows. Their number is limited: the ones that were not used for longest are forgotten.
class RRefClasses {
 public:
  static constexpr size_t kMost = 32768;

  static RRefClasses& instance() {
    static auto* const classes = new RRefClasses();  // never destroyed: threads use it until the process ends
    return *classes;
  }

  void learn(const RRefId& rref, std::string name) {
    if (!name.empty()) {
      const std::lock_guard<std::mutex> lock(mutex_);
      put(rref, std::move(name));
    }
  }

  // Returns the name of the class; empty if it is not known.
  std::string of(const RRefId& rref) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto known = recent_.find(rref); known != recent_.end()) {
      return known->second;
    }
    const auto known = older_.find(rref);
    if (known == older_.end()) {
      return {};
    }
    std::string name = known->second;
    put(rref, name);
    return name;
  }

 private:
  struct Hash {
    size_t operator()(const RRefId& id) const {
      return std::hash<uint64_t>()(static_cast<uint64_t>(id.local_id) * 0x9e3779b97f4a7c15ULL ^
                                   static_cast<uint64_t>(id.created_on));
    }
  };
  using Classes = std::unordered_map<RRefId, std::string, Hash>;

  RRefClasses() = default;

  void put(const RRefId& rref, std::string name) {
    if (recent_.size() >= kMost / 2) {
      older_ = std::move(recent_);
      recent_ = {};
    }
    recent_[rref] = std::move(name);
  }

  std::mutex mutex_;
  Classes recent_, older_;  // an RRef that is used moves to `recent_`
};

}  // namespace rpc_backends
