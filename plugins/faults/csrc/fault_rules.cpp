#include "fault_rules.h"

#include <algorithm>
#include <cmath>

#include "rpc_backends_agents/siphash.h"

namespace rpc_backends {

namespace {

// Digests that are told apart; beyond, messages share counts by some bits of their digest, which bounds memory.
constexpr size_t kMostLikes = size_t{1} << 20;
constexpr uint64_t kLikeBits = (uint64_t{1} << 20) - 1;
// What a draw is for: one message may need several.
constexpr uint64_t kChance = 0;
constexpr uint64_t kLength = 1;
constexpr uint64_t kLength2 = 2;
constexpr uint64_t kAnswer = 8;

FaultRules::Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<FaultRules::Clock::duration>(
      std::chrono::duration<double>(std::min(seconds, kMostSeconds)));
}

bool any_matches(const std::vector<std::string>& patterns, const std::string& text) {
  return patterns.empty() ||
      std::any_of(patterns.begin(), patterns.end(), [&](const auto& pattern) { return matches(pattern, text); });
}

bool is_of_answers(FaultKind kind) {
  return kind == FaultKind::kPartition || kind == FaultKind::kBandwidth || kind == FaultKind::kPause;
}

bool same(const FaultRule& one, const FaultRule& other) {
  const auto all = [](const FaultRule& rule) {
    return std::tie(rule.name, rule.kind, rule.types, rule.senders, rule.receivers, rule.functions, rule.housekeeping,
                    rule.one_way, rule.probability, rule.after, rule.every, rule.first, rule.per, rule.budget,
                    rule.start, rule.end, rule.mark, rule.shape, rule.seconds, rule.spread, rule.others, rule.bound,
                    rule.rate, rule.copies, rule.exit_code, rule.text);
  };
  return all(one) == all(other);
}

std::string described(const FaultMessage& message) {
  return std::string(type_name(message.type)) + (message.function.empty() ? "" : " " + message.function) +
      " to '" + message.receiver + "' (number " + std::to_string(message.nth) + " of its like)";
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

const char* kind_name(FaultKind kind) {
  switch (kind) {
    case FaultKind::kFail:
      return "fail";
    case FaultKind::kDrop:
      return "drop";
    case FaultKind::kDelay:
      return "delay";
    case FaultKind::kReplyLost:
      return "reply_lost";
    case FaultKind::kReplyFail:
      return "reply_fail";
    case FaultKind::kReplyDelay:
      return "reply_delay";
    case FaultKind::kDuplicate:
      return "duplicate";
    case FaultKind::kReorder:
      return "reorder";
    case FaultKind::kPartition:
      return "partition";
    case FaultKind::kBandwidth:
      return "bandwidth";
    case FaultKind::kPause:
      return "pause";
    case FaultKind::kCrash:
      return "crash";
  }
  return "";
}

void FaultRules::set(std::vector<FaultRule> rules, uint64_t seed, std::vector<std::string> housekeeping) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<StatePtr> states;
  for (FaultRule& rule : rules) {
    const auto is_it = [&](const StatePtr& state) { return same(*state->rule, rule); };
    const auto old = std::find_if(rules_.begin(), rules_.end(), is_it);
    if (old != rules_.end() && seed == seed_) {
      states.push_back(*old);
      continue;
    }
    auto state = std::make_shared<State>();
    state->rule = std::make_shared<const FaultRule>(std::move(rule));
    states.push_back(std::move(state));
  }
  rules_ = std::move(states);
  seed_ = seed;
  housekeeping_ = std::move(housekeeping);
  routes_.clear();
  idle_ = rules_.empty() && !replaying_;
}

void FaultRules::set_replay(std::vector<ReplayEntry> entries) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::unordered_map<std::string, int32_t> types;
  for (int32_t type = 0; type < 0x40; ++type) {
    types.emplace(type_name(type | 0x100), type | 0x100);
  }
  for (ReplayEntry& entry : entries) {
    const auto type = types.find(entry.type);
    const Like like{entry.receiver, type == types.end() ? 0 : type->second, entry.digest};
    replay_.emplace(std::make_pair(like, entry.nth), std::move(entry));
  }
  replaying_ = true;
  idle_ = false;
}

void FaultRules::set_mark(const std::string& mark, bool on) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (on) {
    marks_.insert(mark);
  } else {
    marks_.erase(mark);
  }
}

std::optional<FaultMessage> FaultRules::decide(const RequestHead& request, Faults& faults, bool& answers) {
  answers = false;
  if (closed_ && !watched_) {
    return std::nullopt;
  }
  const std::string& receiver = request.peer();
  FaultMessage seen;
  seen.type = request.type();
  seen.wrappers = request.wrappers();
  std::lock_guard<std::mutex> lock(mutex_);
  Route& route = route_to(request.peer_id(), receiver, seen.type);
  const bool describe = watched_ || replaying_;
  if (!describe && route.requests.empty() && route.answers.empty()) {
    return std::nullopt;
  }
  const std::vector<StatePtr>* rules = &route.requests;
  if (describe || route.ask_function) {
    seen.function = request.function();
  }
  if (route.ask_function) {
    rules = &for_function(route, seen.function);
  }
  const bool housekeeping = is_housekeeping(seen.function);
  answers = !closed_ && (replaying_ || std::any_of(route.answers.begin(), route.answers.end(), [&](const auto& state) {
              return !housekeeping || state->rule->housekeeping;
            }));
  if (!describe && rules->empty() && !answers) {
    return std::nullopt;
  }
  seen.receiver = receiver;
  seen.bytes = request.payload_bytes() + request.tensor_bytes();
  seen.digest = request.digest();
  if (route.ask_payload) {
    seen.payload = request.full_digest();
  }
  uint64_t like = Like{receiver, seen.type, seen.digest}.hash();
  if (seen_.size() >= kMostLikes && seen_.find(like) == seen_.end()) {
    like &= kLikeBits;
  }
  seen.nth = ++seen_[like];
  if (replaying_) {
    Faults none;
    replay(seen, false, closed_ || housekeeping ? Expected::kMaybe : Expected::kYes, closed_ ? none : faults);
    return seen;
  }
  if (closed_) {
    return seen;
  }
  for (const StatePtr& state : *rules) {
    const FaultRule& rule = *state->rule;
    if (rule.kind == FaultKind::kPause && !any_matches(rule.senders, worker_)) {
      // Another worker is paused, and here that shows in its answers: what is sent to it may begin that.
      if (Clock::now() >= state->paused_until && fires(*state, seen, false)) {
        seconds_of(*state, seen, false);
        count(*state, seen);
      }
      continue;
    }
    const bool paused = rule.kind == FaultKind::kPause && Clock::now() < state->paused_until;
    if (!paused && !fires(*state, seen, false)) {
      continue;
    }
    count(*state, seen, !paused);
    faults.push_back({state->rule, seconds_of(*state, seen, false)});
    if (rule.kind == FaultKind::kFail || rule.kind == FaultKind::kDrop || rule.kind == FaultKind::kPartition ||
        rule.kind == FaultKind::kCrash) {
      break;  // nothing is sent that a later rule could do something to
    }
  }
  return seen;
}

Faults FaultRules::decide_answer(const FaultMessage& message, uint64_t bytes) {
  Faults faults;
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) {
    return faults;
  }
  if (replaying_) {
    replay(message, true, Expected::kMaybe, faults);
    return faults;
  }
  const bool housekeeping = is_housekeeping(message.function);
  for (const StatePtr& state : rules_) {
    const FaultRule& rule = *state->rule;
    if (!is_of_answers(rule.kind) || !sent_by(rule, message.receiver, worker_) ||
        (housekeeping && !rule.housekeeping) || !any_matches(rule.types, type_name(message.type)) ||
        !any_matches(rule.functions, message.function)) {
      continue;
    }
    FaultMessage answer = message;
    answer.bytes = bytes;
    if (rule.kind == FaultKind::kPause) {
      const double left = std::chrono::duration<double>(state->paused_until - Clock::now()).count();
      const bool in_window = rule.end < FaultRule::kForever && rule.seconds == 0 && rule.spread == 0 && is_on(rule);
      if (left > 0 || in_window) {
        count(*state, answer, false);
        faults.push_back({state->rule, left > 0 ? left : rule.end - now()});
      }
    } else if (fires(*state, answer, true)) {
      count(*state, answer);
      faults.push_back({state->rule, seconds_of(*state, answer, true)});
      if (rule.kind == FaultKind::kPartition) {
        break;
      }
    }
  }
  return faults;
}

FaultRules::Route& FaultRules::route_to(int receiver_id, const std::string& receiver, int32_t type) {
  Route& route = routes_[{receiver_id, type}];
  if (route.receiver == receiver) {
    return route;
  }
  route = Route();
  route.receiver = receiver;
  const std::string name = type_name(type);
  for (const StatePtr& state : rules_) {
    const FaultRule& rule = *state->rule;
    if (!any_matches(rule.types, name)) {
      continue;
    }
    const bool link = is_of_answers(rule.kind);
    const bool paused_peer = rule.kind == FaultKind::kPause && any_matches(rule.senders, receiver);
    if (sent_by(rule, worker_, receiver) || paused_peer) {
      route.requests.push_back(state);
    }
    if (link && sent_by(rule, receiver, worker_)) {
      route.answers.push_back(state);
    }
  }
  if (calls_function(type)) {
    const auto asks = [&](const StatePtr& state) {
      return !state->rule->functions.empty() || !state->rule->housekeeping;
    };
    route.ask_function = std::any_of(route.requests.begin(), route.requests.end(), asks) ||
        std::any_of(route.answers.begin(), route.answers.end(), asks);
  } else {
    const auto has_function = [](const StatePtr& state) { return !state->rule->functions.empty(); };
    std::erase_if(route.requests, has_function);
    std::erase_if(route.answers, has_function);
  }
  const auto by_payload = [](const StatePtr& state) { return state->rule->per == FaultRule::Per::kPayload; };
  route.ask_payload = std::any_of(route.requests.begin(), route.requests.end(), by_payload) ||
      std::any_of(route.answers.begin(), route.answers.end(), by_payload);
  return route;
}

const std::vector<FaultRules::StatePtr>& FaultRules::for_function(Route& route, const std::string& function) {
  const auto found = route.by_function.find(function);
  if (found != route.by_function.end()) {
    return found->second;
  }
  const bool housekeeping = is_housekeeping(function);
  std::vector<StatePtr> rules;
  for (const StatePtr& state : route.requests) {
    if ((!housekeeping || state->rule->housekeeping) && any_matches(state->rule->functions, function)) {
      rules.push_back(state);
    }
  }
  if (route.by_function.size() >= kMostLikes) {
    route.by_function.clear();
  }
  return route.by_function.emplace(function, std::move(rules)).first->second;
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

uint64_t FaultRules::Like::hash() const {
  SipHash hash(digest, static_cast<uint64_t>(type));
  hash.add(receiver);
  return hash.finish();
}

bool FaultRules::is_on(const FaultRule& rule) const {
  if (rule.start > 0 || rule.end < FaultRule::kForever) {
    const double at = now();
    if (at < rule.start || at >= rule.end) {
      return false;
    }
  }
  return rule.mark.empty() ||
      std::any_of(marks_.begin(), marks_.end(), [&](const auto& mark) { return matches(rule.mark, mark); });
}

bool FaultRules::fires(State& state, const FaultMessage& message, bool answer) {
  const FaultRule& rule = *state.rule;
  if (!is_on(rule)) {
    return false;
  }
  ++state.matched;
  if (rule.after > 0 || rule.every > 1 || rule.first > 0) {
    std::pair<std::string, uint64_t> key;
    if (rule.per != FaultRule::Per::kAll) {
      key.first = message.receiver;
    }
    if (rule.per == FaultRule::Per::kPayload) {
      key.second = message.payload;
      if (state.counts.size() >= kMostLikes) {
        key.second &= kLikeBits;
      }
    }
    const uint64_t counted = ++state.counts[key];
    if (counted <= rule.after) {
      return false;
    }
    const uint64_t number = counted - rule.after;
    if (number % rule.every != 0 || (rule.first > 0 && number / rule.every > rule.first)) {
      return false;
    }
  }
  if (rule.budget > 0 && state.fired >= rule.budget) {
    return false;
  }
  return rule.probability >= 1 || draw(rule, message, kChance + (answer ? kAnswer : 0)) < rule.probability;
}

double FaultRules::draw(const FaultRule& rule, const FaultMessage& message, uint64_t lane) const {
  SipHash hash(seed_, lane);
  hash.add(rule.name);
  hash.add(worker_);
  hash.add(message.receiver);
  hash.add(type_name(message.type));
  hash.add_number(message.digest);
  hash.add_number(message.nth);
  return static_cast<double>(hash.finish() >> 11) * 0x1p-53;
}

double FaultRules::seconds_of(State& state, const FaultMessage& message, bool answer) {
  const FaultRule& rule = *state.rule;
  const uint64_t lane = answer ? kAnswer : 0;
  double seconds = rule.seconds;
  switch (rule.shape) {
    case FaultRule::Shape::kFixed:
      break;
    case FaultRule::Shape::kUniform:
      seconds += (rule.spread - rule.seconds) * draw(rule, message, lane + kLength);
      break;
    case FaultRule::Shape::kNormal: {
      const double one = 1 - draw(rule, message, lane + kLength);
      const double two = draw(rule, message, lane + kLength2);
      seconds += rule.spread * std::sqrt(-2 * std::log(one)) * std::cos(2 * M_PI * two);
      break;
    }
    case FaultRule::Shape::kExponential:
      seconds *= -std::log(1 - draw(rule, message, lane + kLength));
      break;
  }
  seconds = std::clamp(seconds, 0.0, kMostSeconds);
  const auto at = Clock::now();
  if (rule.kind == FaultKind::kPause) {
    if (at >= state.paused_until) {
      const bool has_length = rule.seconds > 0 || rule.spread > 0;
      state.paused_until = at + duration_of(has_length ? seconds : rule.end - now());
    }
    seconds = std::chrono::duration<double>(state.paused_until - at).count();
  } else if (rule.kind == FaultKind::kBandwidth) {
    auto& free_at = state.free_at[(answer ? "<" : ">") + message.receiver];
    free_at = std::min(std::max(free_at, at) + duration_of(message.bytes / rule.rate), at + duration_of(kMostSeconds));
    seconds = std::chrono::duration<double>(free_at - at).count();
  }
  return seconds;
}

void FaultRules::count(State& state, const FaultMessage& message, bool whole) {
  state.fired += whole ? 1 : 0;
  ++state.fired_by[{type_name(message.type), message.receiver}];
}

void FaultRules::replay(const FaultMessage& message, bool answer, Expected expected, Faults& faults) {
  const auto key = std::make_pair(Like{message.receiver, message.type, message.digest}, message.nth);
  const auto found = replay_.find(key);
  if (found == replay_.end()) {
    if (expected == Expected::kYes && strangers_++ == 0) {
      first_stranger_ = described(message);
    }
    return;
  }
  replayed_.insert(key);
  for (const auto& [name, seconds] : answer ? found->second.answer_faults : found->second.faults) {
    const auto is_it = [&wanted = name](const StatePtr& one) { return one->rule->name == wanted; };
    const auto state = std::find_if(rules_.begin(), rules_.end(), is_it);
    if (state != rules_.end()) {
      ++(*state)->matched;
      count(**state, message);
      faults.push_back({(*state)->rule, seconds});
    }
  }
}

std::vector<FaultCount> FaultRules::counts() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<FaultCount> counts;
  for (const StatePtr& state : rules_) {
    counts.push_back({state->rule->name, state->matched, state->fired});
  }
  return counts;
}

std::map<std::string, std::string> FaultRules::metrics() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::map<std::string, std::string> found;
  for (const StatePtr& state : rules_) {
    const std::string& prefix = state->rule->name;
    found[prefix] = std::to_string(state->fired);
    for (const auto& [where, times] : state->fired_by) {
      found[prefix + "." + where.first + "." + where.second] = std::to_string(times);
    }
  }
  return found;
}

uint64_t FaultRules::strangers() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return strangers_;
}

std::string FaultRules::first_stranger() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return first_stranger_;
}

uint64_t FaultRules::missing() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return replay_.size() - replayed_.size();
}

std::string FaultRules::first_missing() const {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [key, entry] : replay_) {
    if (replayed_.count(key) == 0) {
      return entry.type + " to '" + entry.receiver + "' (number " + std::to_string(entry.nth) + " of its like)";
    }
  }
  return {};
}

}  // namespace rpc_backends
