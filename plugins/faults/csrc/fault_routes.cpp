// Which rules match which messages. The rules for a receiver, a type and a function are found once and kept.
#include <algorithm>

#include "fault_rules.h"

namespace rpc_backends {

namespace {

// How many functions a route keeps the rules of.
constexpr size_t kMostFunctions = size_t{1} << 20;

bool is_of_tensors(FaultKind kind) {
  return kind == FaultKind::kCorrupt || kind == FaultKind::kReplyCorrupt;
}

// Whether a rule makes random decisions.
bool draws(const FaultRule& rule) {
  return rule.probability < 1 || rule.shape != FaultRule::Shape::kFixed || is_of_tensors(rule.kind);
}

}  // namespace

bool matches(const std::string& pattern, const std::string& text) {
  size_t p = 0;
  size_t t = 0;
  size_t star = std::string::npos;
  size_t resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || (pattern[p] != '*' && pattern[p] == text[t]))) {
      ++p;
      ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (star != std::string::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') {
    ++p;
  }
  return p == pattern.size();
}

bool any_matches(const std::vector<std::string>& patterns, const std::string& text) {
  return patterns.empty() ||
         std::any_of(patterns.begin(), patterns.end(), [&](const auto& pattern) { return matches(pattern, text); });
}

FaultRules::Route& FaultRules::route_to(int receiver_id, const std::string& receiver, int32_t type) {
  Route& route = routes_[{receiver_id, type}];
  if (route.receiver == receiver) {
    return route;
  }
  route = Route();
  route.receiver = receiver;
  for (const StatePtr& state : rules_) {
    if (selects(*state->rule, type, receiver, false)) {
      route.all.requests.push_back(state);
    }
    if (selects(*state->rule, type, receiver, true)) {
      route.all.answers.push_back(state);
    }
  }
  if (calls_function(type)) {
    const auto asks = [&](const StatePtr& state) {
      return !state->rule->functions.empty() || !state->rule->housekeeping;
    };
    route.ask_function = std::any_of(route.all.requests.begin(), route.all.requests.end(), asks) ||
                         std::any_of(route.all.answers.begin(), route.all.answers.end(), asks);
  }
  summarise(route.all);
  return route;
}

const FaultRules::Selected& FaultRules::for_function(Route& route, const std::string& function) {
  const auto known = route.by_function.find(function);
  if (known != route.by_function.end()) {
    return known->second;
  }
  const bool housekeeping = is_housekeeping(function);
  const auto is_for_others = [&](const StatePtr& state) {
    return (housekeeping && !state->rule->housekeeping) || !any_matches(state->rule->functions, function);
  };
  Selected selected = route.all;
  std::erase_if(selected.requests, is_for_others);
  std::erase_if(selected.answers, is_for_others);
  summarise(selected);
  if (route.by_function.size() >= kMostFunctions) {
    route.by_function.clear();
  }
  return route.by_function.emplace(function, std::move(selected)).first->second;
}

void FaultRules::summarise(Selected& selected) {
  selected.drawing.clear();
  selected.ask_payload = false;
  for (const auto* states : {&selected.requests, &selected.answers}) {
    for (const StatePtr& state : *states) {
      const FaultRule& rule = *state->rule;
      const auto& drawing = selected.drawing;
      if (draws(rule) && std::find(drawing.begin(), drawing.end(), state) == drawing.end()) {
        selected.drawing.push_back(state);
      }
      selected.ask_payload = selected.ask_payload || (rule.counts_messages() && rule.per == FaultRule::Per::kPayload);
    }
  }
}

bool FaultRules::selects(const FaultRule& rule, int32_t type, const std::string& receiver, bool answer) const {
  if (!any_matches(rule.types, type_name(type)) || (!rule.functions.empty() && !calls_function(type))) {
    return false;
  }
  // Torch's autograd engine counts the gradients that arrive; one too many would keep the backward pass from ending.
  if (rule.kind == FaultKind::kDuplicate && type == kBackwardAutogradRequest) {
    return false;
  }
  const bool pause = rule.kind == FaultKind::kPause;
  if (answer) {
    const bool both = pause || rule.kind == FaultKind::kPartition || rule.kind == FaultKind::kBandwidth;
    return both && sent_by(rule, receiver, worker_);
  }
  return sent_by(rule, worker_, receiver) || (pause && any_matches(rule.senders, receiver));
}

bool FaultRules::sent_by(const FaultRule& rule, const std::string& sender, const std::string& receiver) const {
  if (rule.kind == FaultKind::kPause) {
    return any_matches(rule.senders, sender);
  }
  if (any_matches(rule.senders, sender) && any_matches(rule.receivers, receiver)) {
    return true;
  }
  const bool both_ways = (rule.kind == FaultKind::kPartition || rule.kind == FaultKind::kBandwidth) && !rule.one_way;
  return both_ways && any_matches(rule.senders, receiver) && any_matches(rule.receivers, sender);
}

bool FaultRules::is_housekeeping(const std::string& function) const {
  return !housekeeping_.empty() && !function.empty() && any_matches(housekeeping_, function);
}

}  // namespace rpc_backends
