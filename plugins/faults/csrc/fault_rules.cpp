#include "fault_rules.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "rpc_backends_agents/siphash.h"

namespace rpc_backends {

namespace {

// How many different messages a rule counts separately. Beyond that, messages share counts by some bits of their
// hash, which limits memory.
constexpr size_t kMostKeys = size_t{1} << 20;
constexpr uint64_t kKeyBits = (uint64_t{1} << 20) - 1;
// What a random number is for: one message may need several.
constexpr uint64_t kChance = 0;
constexpr uint64_t kLength = 1;
constexpr uint64_t kLength2 = 2;
constexpr uint64_t kPlace = 3;
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

bool is_of_tensors(FaultKind kind) {
  return kind == FaultKind::kCorrupt || kind == FaultKind::kReplyCorrupt;
}

// Whether a rule makes random decisions.
bool draws(const FaultRule& rule) {
  return rule.probability < 1 || rule.shape != FaultRule::Shape::kFixed || is_of_tensors(rule.kind);
}

// Whether a rule counts messages.
bool counts_messages(const FaultRule& rule) {
  return rule.after > 0 || rule.every > 1 || rule.first > 0;
}

bool same(const FaultRule& one, const FaultRule& other) {
  const auto all = [](const FaultRule& rule) {
    return std::tie(rule.key, rule.kind, rule.types, rule.senders, rule.receivers, rule.functions, rule.housekeeping,
                    rule.one_way, rule.probability, rule.after, rule.every, rule.first, rule.per, rule.budget,
                    rule.start, rule.end, rule.mark, rule.shape, rule.seconds, rule.spread, rule.others, rule.bound,
                    rule.rate, rule.copies, rule.exit_code, rule.text, rule.element, rule.bit, rule.memory, rule.each,
                    rule.by);
  };
  return all(one) == all(other);
}

std::string described(const ReplayEntry& entry) {
  return entry.type + (entry.function.empty() ? "" : " " + entry.function) + " to '" + entry.receiver +
         "' (occurrence " + std::to_string(entry.nth) + ")";
}

std::string described(const FaultMessage& message) {
  return std::string(type_name(message.type)) + (message.function.empty() ? "" : " " + message.function) + " to '" +
         message.receiver + "' (occurrence " + std::to_string(message.nth) + ")";
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
    case FaultKind::kStop:
      return "stop";
    case FaultKind::kCorrupt:
      return "corrupt";
    case FaultKind::kReplyCorrupt:
      return "reply_corrupt";
    case FaultKind::kMemory:
      return "memory";
    case FaultKind::kStore:
      return "store";
    case FaultKind::kClock:
      return "clock";
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
      if (rule.name == (*old)->rule->name) {
        rule.version = (*old)->rule->version;
      }
      (*old)->rule = std::make_shared<const FaultRule>(std::move(rule));  // the name may be another
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
  FaultMessage seen;
  seen.type = request.type();
  seen.wrappers = request.wrappers();
  seen.receiver = request.peer();
  seen.bytes = request.payload_bytes() + request.tensor_bytes();
  seen.tensors = request.tensors();
  bool has_function = false;
  bool has_digest = false;
  bool has_payload = false;
  // Properties that are slow to read are read without the lock; the rules may change in the meantime.
  while (true) {
    bool ask_digest = false;
    bool ask_payload = false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      Route& route = route_to(request.peer_id(), seen.receiver, seen.type);
      const bool describe = watched_ || replaying_;
      if (!describe && route.all.requests.empty() && route.all.answers.empty()) {
        return std::nullopt;
      }
      if (has_function || !(describe || route.ask_function)) {
        const Selected& selected = route.ask_function ? for_function(route, seen.function) : route.all;
        answers = !closed_ && (replaying_ || !selected.answers.empty());
        if (!describe && selected.requests.empty() && !answers) {
          return std::nullopt;
        }
        ask_digest = !has_digest && (describe || !selected.drawing.empty());
        ask_payload = !has_payload && selected.ask_payload;
        if (!ask_digest && !ask_payload) {
          return decide_locked(std::move(seen), selected, describe, faults);
        }
      }
    }
    if (!has_function) {
      seen.function = request.function();
      has_function = true;
    }
    if (ask_digest) {
      seen.digest = request.digest();
      has_digest = true;
    }
    if (ask_payload) {
      seen.payload = request.full_digest();
      has_payload = true;
    }
  }
}

FaultMessage FaultRules::decide_locked(FaultMessage seen, const Selected& selected, bool describe, Faults& faults) {
  if (describe) {
    seen.nth = number(seen_, seen);
  }
  if (replaying_) {
    Faults none;
    const bool free = closed_ || is_housekeeping(seen.function);
    replay(seen, false, free ? Expected::kMaybe : Expected::kYes, closed_ ? none : faults);
    return seen;
  }
  if (closed_) {
    return seen;
  }
  for (const StatePtr& state : selected.drawing) {
    seen.numbers.emplace_back(state.get(), number(state->numbers, seen));
  }
  bool is_sent = true;
  for (const StatePtr& state : selected.requests) {
    const FaultRule& rule = *state->rule;
    if (rule.kind == FaultKind::kCorrupt && seen.tensors == 0) {
      continue;
    }
    // A rule decides as if it were the only one: it also counts messages that an earlier rule has ended.
    const bool paused = rule.kind == FaultKind::kPause && Clock::now() < state->paused_until;
    const bool chosen = !paused && fires(*state, seen, false);
    if (!paused && !chosen) {
      continue;
    }
    if (rule.kind == FaultKind::kPause && !any_matches(rule.senders, worker_)) {
      // The rule pauses another worker, whose answers are then held here. A request to it may start the pause.
      if (chosen) {
        seconds_of(*state, seen, false);
        count(*state, seen);
      }
      continue;
    }
    if (!is_sent) {
      continue;  // an earlier rule has ended the message
    }
    count(*state, seen, !paused);
    faults.push_back({state->rule, seconds_of(*state, seen, false)});
    is_sent = rule.kind != FaultKind::kFail && rule.kind != FaultKind::kDrop && rule.kind != FaultKind::kPartition &&
              rule.kind != FaultKind::kCrash;
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
  bool is_lost = false;
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
      if (!is_lost && (left > 0 || in_window)) {
        count(*state, answer, false);
        faults.push_back({state->rule, left > 0 ? left : rule.end - now()});
      }
    } else if (fires(*state, answer, true) && !is_lost) {
      count(*state, answer);
      faults.push_back({state->rule, seconds_of(*state, answer, true)});
      is_lost = rule.kind == FaultKind::kPartition;
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
    // Torch's autograd engine counts the gradients that arrive; one too many would keep the backward pass from ending.
    if (rule.kind == FaultKind::kDuplicate && type == kBackwardAutogradRequest) {
      continue;
    }
    const bool link = is_of_answers(rule.kind);
    const bool paused_peer = rule.kind == FaultKind::kPause && any_matches(rule.senders, receiver);
    if (sent_by(rule, worker_, receiver) || paused_peer) {
      route.all.requests.push_back(state);
    }
    if (link && sent_by(rule, receiver, worker_)) {
      route.all.answers.push_back(state);
    }
  }
  if (calls_function(type)) {
    const auto asks = [&](const StatePtr& state) {
      return !state->rule->functions.empty() || !state->rule->housekeeping;
    };
    route.ask_function = std::any_of(route.all.requests.begin(), route.all.requests.end(), asks) ||
                         std::any_of(route.all.answers.begin(), route.all.answers.end(), asks);
  } else {
    const auto has_function = [](const StatePtr& state) { return !state->rule->functions.empty(); };
    std::erase_if(route.all.requests, has_function);
    std::erase_if(route.all.answers, has_function);
  }
  summarise(route.all);
  return route;
}

const FaultRules::Selected& FaultRules::for_function(Route& route, const std::string& function) {
  const auto found = route.by_function.find(function);
  if (found != route.by_function.end()) {
    return found->second;
  }
  const bool housekeeping = is_housekeeping(function);
  const auto is_for_others = [&](const StatePtr& state) {
    return (housekeeping && !state->rule->housekeeping) || !any_matches(state->rule->functions, function);
  };
  Selected selected = route.all;
  std::erase_if(selected.requests, is_for_others);
  std::erase_if(selected.answers, is_for_others);
  summarise(selected);
  if (route.by_function.size() >= kMostKeys) {
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
      selected.ask_payload = selected.ask_payload || (counts_messages(rule) && rule.per == FaultRule::Per::kPayload);
    }
  }
}

uint64_t FaultRules::number(std::unordered_map<uint64_t, uint64_t>& numbers, const FaultMessage& message) const {
  uint64_t like = MessageKey{message.receiver, message.type, message.digest}.hash();
  if (numbers.size() >= kMostKeys && numbers.find(like) == numbers.end()) {
    like &= kKeyBits;
  }
  return ++numbers[like];
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

uint64_t FaultRules::MessageKey::hash() const {
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
  State::Counts& counted = state.counts[answer ? 1 : 0];
  if (counts_messages(rule)) {
    std::pair<std::string, uint64_t> key;
    if (rule.per != FaultRule::Per::kAll) {
      key.first = message.receiver;
    }
    if (rule.per == FaultRule::Per::kPayload) {
      key.second = message.payload;
      if (counted.messages.size() >= kMostKeys) {
        key.second &= kKeyBits;
      }
    }
    const uint64_t so_far = ++counted.messages[key];
    if (so_far <= rule.after) {
      return false;
    }
    const uint64_t number = so_far - rule.after;
    if (number % rule.every != 0 || (rule.first > 0 && number / rule.every > rule.first)) {
      return false;
    }
  }
  if (rule.budget > 0 && counted.chosen >= rule.budget) {
    return false;
  }
  if (rule.probability < 1 && draw(state, message, kChance + (answer ? kAnswer : 0)) >= rule.probability) {
    return false;
  }
  ++counted.chosen;
  return true;
}

double FaultRules::draw(const State& state, const FaultMessage& message, uint64_t lane) const {
  const auto is_it = [&](const auto& one) { return one.first == &state; };
  const auto number = std::find_if(message.numbers.begin(), message.numbers.end(), is_it);
  SipHash hash(seed_, lane);
  hash.add(state.rule->key);
  hash.add(worker_);
  hash.add(message.receiver);
  hash.add(type_name(message.type));
  hash.add_number(message.digest);
  // There is no number for the answer to a request that was sent before the rule was added.
  hash.add_number(number == message.numbers.end() ? 0 : number->second);
  return static_cast<double>(hash.finish() >> 11) * 0x1p-53;
}

std::pair<uint64_t, uint64_t> FaultRules::place_of(const FaultRule& rule, const FaultMessage& message) const {
  SipHash hash(seed_, kPlace);
  hash.add(rule.name);
  hash.add(message.receiver);
  hash.add(type_name(message.type));
  hash.add_number(message.digest);
  const uint64_t drawn = hash.finish();
  return {rule.element >= 0 ? static_cast<uint64_t>(rule.element) : drawn >> 8,
          rule.bit >= 0 ? static_cast<uint64_t>(rule.bit) : drawn & 0xff};
}

double FaultRules::seconds_of(State& state, const FaultMessage& message, bool answer) {
  const FaultRule& rule = *state.rule;
  const uint64_t lane = answer ? kAnswer : 0;
  double seconds = rule.seconds;
  switch (rule.shape) {
    case FaultRule::Shape::kFixed:
      break;
    case FaultRule::Shape::kUniform:
      seconds += (rule.spread - rule.seconds) * draw(state, message, lane + kLength);
      break;
    case FaultRule::Shape::kNormal: {
      const double one = 1 - draw(state, message, lane + kLength);
      const double two = draw(state, message, lane + kLength2);
      seconds += rule.spread * std::sqrt(-2 * std::log(one)) * std::cos(2 * M_PI * two);
      break;
    }
    case FaultRule::Shape::kExponential:
      seconds *= -std::log(1 - draw(state, message, lane + kLength));
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
  const auto key = std::make_pair(MessageKey{message.receiver, message.type, message.digest}, message.nth);
  const auto found = replay_.find(key);
  if (found == replay_.end()) {
    if (expected == Expected::kYes && unrecorded_++ == 0) {
      first_unrecorded_ = described(message);
    }
    return;
  }
  if (replayed_.insert(key).second) {
    progress_ = Clock::now();
    progress_at_ = std::max(progress_at_, found->second.at);
  }
  for (const auto& [number, seconds] : answer ? found->second.answer_faults : found->second.faults) {
    State& state = *rules_.at(number);
    ++state.matched;
    count(state, message);
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

std::vector<FaultCount> FaultRules::counts() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<FaultCount> found;
  for (const StatePtr& state : rules_) {
    // A replay may contain several versions of a rule.
    const auto is_it = [&](const FaultCount& count) { return count.rule == state->rule->name; };
    const auto known = std::find_if(found.begin(), found.end(), is_it);
    if (known == found.end()) {
      found.push_back({state->rule->name, state->matched, state->fired});
    } else {
      known->matched += state->matched;
      known->fired += state->fired;
    }
  }
  return found;
}

Metrics FaultRules::metrics() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::map<std::string, uint64_t> sums;
  for (const StatePtr& state : rules_) {
    const std::string& prefix = state->rule->name;
    sums[prefix] += state->fired;
    for (const auto& [where, times] : state->fired_by) {
      sums[prefix + "." + where.first + "." + where.second] += times;
    }
  }
  if (replaying_) {
    sums["replay_new"] = unrecorded_;
    sums["replay_left"] = replay_.size() - replayed_.size();
  }
  Metrics found;
  for (const auto& [name, sum] : sums) {
    found[name] = std::to_string(sum);
  }
  return found;
}

uint64_t FaultRules::unrecorded() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return unrecorded_;
}

std::string FaultRules::first_unrecorded() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return first_unrecorded_;
}

uint64_t FaultRules::missing() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return replay_.size() - replayed_.size();
}

std::string FaultRules::first_missing() const {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [key, entry] : replay_) {
    if (replayed_.count(key) == 0) {
      return described(entry);
    }
  }
  return {};
}

}  // namespace rpc_backends
