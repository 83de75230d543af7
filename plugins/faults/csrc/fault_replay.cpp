// Repeats the faults of a recorded run, and says where a run differs from it.
#include <algorithm>
#include <cstdio>

#include "fault_rules.h"

namespace rpc_backends {

namespace {

std::string described(const ReplayEntry& entry) {
  return entry.type + (entry.function.empty() ? "" : " " + entry.function) + " to '" + entry.receiver +
         "' (occurrence " + std::to_string(entry.nth) + ")";
}

std::string described(const FaultMessage& message) {
  return std::string(type_name(message.type)) + (message.function.empty() ? "" : " " + message.function) + " to '" +
         message.receiver + "' (occurrence " + std::to_string(message.nth) + ")";
}

}  // namespace

void FaultRules::set_replay(std::vector<ReplayEntry> entries, double stall_timeout) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::unordered_map<std::string, int32_t> types;
  for (int32_t type = 0; type < 0x40; ++type) {
    types.emplace(type_name(type | 0x100), type | 0x100);
  }
  for (ReplayEntry& entry : entries) {
    const auto type = types.find(entry.type);
    const MessageKey like{entry.receiver, type == types.end() ? 0 : type->second, entry.digest};
    order_.emplace_back(like, entry.nth);
    replay_.emplace(order_.back(), std::move(entry));
  }
  stall_timeout_ = stall_timeout;
  progress_ = Clock::now();
  replaying_ = true;
  idle_ = false;
}

void FaultRules::replay(const FaultMessage& message, bool answer, Expected expected, Faults& faults) {
  const auto key = std::make_pair(MessageKey{message.receiver, message.type, message.digest}, message.nth);
  const auto recorded = replay_.find(key);
  if (recorded == replay_.end()) {
    if (expected == Expected::kYes && unrecorded_++ == 0) {
      first_unrecorded_ = described(message);
    }
    return;
  }
  if (replayed_.insert(key).second) {
    progress_ = Clock::now();
    progress_at_ = std::max(progress_at_, recorded->second.at);
  }
  for (const auto& [number, seconds] : answer ? recorded->second.answer_faults : recorded->second.faults) {
    State& state = *rules_.at(number);
    ++state.matched;
    ++state.fired;
    ++state.fired_by[{type_name(message.type), message.receiver}];
    faults.push_back({state.rule, seconds});
  }
}

std::optional<std::string> FaultRules::replay_status() {
  if (!replaying_) {
    return std::nullopt;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const std::string so_far =
      " after " + std::to_string(replayed_.size()) + " of " + std::to_string(replay_.size()) + " recorded messages";
  if (unrecorded_ > 0 && !reported_unrecorded_) {
    reported_unrecorded_ = true;
    return "diverged" + so_far + ": " + first_unrecorded_ + " is not in the log";
  }
  const std::string late = closed_ ? "" : stalled();
  return late.empty() ? std::nullopt : std::make_optional("has stalled" + so_far + ": " + late);
}

std::string FaultRules::stalled() {
  while (next_ < order_.size() && replayed_.count(order_[next_]) != 0) {
    ++next_;
  }
  if (next_ == order_.size() || reported_ == next_) {
    return {};
  }
  const ReplayEntry& entry = replay_.at(order_[next_]);
  const double waited = std::chrono::duration<double>(Clock::now() - progress_).count();
  const double recorded = std::max(0.0, entry.at - progress_at_);
  if (waited <= recorded + stall_timeout_) {
    return {};
  }
  reported_ = next_;
  char seconds[80];
  std::snprintf(seconds, sizeof(seconds), "%.1f s after the message before it, and now is overdue after %.1f s",
                recorded, waited);
  return described(entry) + " was recorded " + seconds;
}

Divergence FaultRules::divergence() const {
  std::lock_guard<std::mutex> lock(mutex_);
  Divergence divergence{unrecorded_, first_unrecorded_, replay_.size() - replayed_.size(), {}};
  for (const auto& [key, entry] : replay_) {
    if (replayed_.count(key) == 0) {
      divergence.first_missing = described(entry);
      break;
    }
  }
  return divergence;
}

}  // namespace rpc_backends
