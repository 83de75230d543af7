#include "fault_rules.h"

#include <algorithm>
#include <cmath>

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

// Whether a pause has a length of its own; otherwise it ends with the rule.
bool has_length(const FaultRule& rule) {
  return rule.seconds > 0 || rule.spread > 0;
}

// What a rule counts a message under.
std::pair<std::string, uint64_t> count_key(const FaultRule& rule, const FaultMessage& message, size_t keys) {
  const uint64_t bits = keys < kMostKeys ? ~uint64_t{0} : kKeyBits;
  return {rule.per == FaultRule::Per::kAll ? "" : message.receiver,
          rule.per == FaultRule::Per::kPayload ? message.payload & bits : 0};
}

// Whether a rule's counts choose the message with this number, from 1.
bool chosen_by_counts(const FaultRule& rule, uint64_t number) {
  if (number <= rule.after || (number - rule.after) % rule.every != 0) {
    return false;
  }
  return rule.first == 0 || (number - rule.after) / rule.every <= rule.first;
}

bool same(const FaultRule& rule, const FaultRule& other) {
  const auto all = [](const FaultRule& rule) {
    return std::tie(rule.key, rule.kind, rule.types, rule.senders, rule.receivers, rule.functions, rule.housekeeping,
                    rule.one_way, rule.probability, rule.after, rule.every, rule.first, rule.per, rule.budget,
                    rule.start, rule.end, rule.mark, rule.shape, rule.seconds, rule.spread, rule.others, rule.bound,
                    rule.rate, rule.copies, rule.exit_code, rule.text, rule.element, rule.bit, rule.memory, rule.each,
                    rule.by);
  };
  return all(rule) == all(other);
}

}  // namespace

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
  seen.receiver_id = request.peer_id();
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
      Route& route = route_to(seen.receiver_id, seen.receiver, seen.type);
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
  faults = apply_all(selected.requests, seen, false);
  return seen;
}

Faults FaultRules::decide_answer(const FaultMessage& message, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) {
    return {};
  }
  if (replaying_) {
    Faults faults;
    replay(message, true, Expected::kMaybe, faults);
    return faults;
  }
  Route& route = route_to(message.receiver_id, message.receiver, message.type);
  const Selected& selected = route.ask_function ? for_function(route, message.function) : route.all;
  FaultMessage answer = message;
  answer.bytes = bytes;
  return apply_all(selected.answers, answer, true);
}

Faults FaultRules::apply_all(const std::vector<StatePtr>& rules, const FaultMessage& message, bool answer) {
  Faults faults;
  bool ended = false;
  for (const StatePtr& state : rules) {
    if (auto fault = apply(*state, message, answer, ended)) {
      const FaultKind kind = fault->rule->kind;
      ended = ended || kind == FaultKind::kFail || kind == FaultKind::kDrop || kind == FaultKind::kPartition ||
              kind == FaultKind::kCrash;
      faults.push_back(std::move(*fault));
    }
  }
  return faults;
}

std::optional<Fault> FaultRules::apply(State& state, const FaultMessage& message, bool answer, bool ended) {
  const FaultRule& rule = *state.rule;
  if (rule.kind == FaultKind::kCorrupt && message.tensors == 0) {
    return std::nullopt;
  }
  const auto at = Clock::now();
  const bool pause = rule.kind == FaultKind::kPause;
  // A pause holds everything that the rule selects until it ends. An answer starts no pause.
  const bool paused = pause && (at < state.paused_until ||
                                (answer && !has_length(rule) && rule.end < FaultRule::kForever && is_on(rule, at)));
  if (pause && answer && !paused) {
    return std::nullopt;
  }
  if (!paused) {
    // Match: selects() has compared the patterns. The time and the marks are compared here.
    if (!is_on(rule, at)) {
      return std::nullopt;
    }
    ++state.matched;
    // Limit. A rule counts as if it were the only one: also messages that an earlier rule has ended.
    State::Counts& counts = state.counts[answer ? 1 : 0];
    if (rule.counts_messages() &&
        !chosen_by_counts(rule, ++counts.messages[count_key(rule, message, counts.messages.size())])) {
      return std::nullopt;
    }
    if (rule.budget > 0 && counts.chosen >= rule.budget) {
      return std::nullopt;
    }
    // Decide, by the seed.
    if (rule.probability < 1 && draw(state, message, kChance + (answer ? kAnswer : 0)) >= rule.probability) {
      return std::nullopt;
    }
    ++counts.chosen;
  }
  // Apply. A rule that pauses the receiver holds its answers here; a request only starts the pause.
  const bool only_starts = pause && !answer && !any_matches(rule.senders, worker_);
  if (only_starts ? paused : ended) {
    return std::nullopt;
  }
  state.fired += paused ? 0 : 1;
  ++state.fired_by[{type_name(message.type), message.receiver}];
  const double seconds = seconds_of(state, message, answer, at);
  return only_starts ? std::nullopt : std::make_optional(Fault{state.rule, seconds});
}

uint64_t FaultRules::number(std::unordered_map<uint64_t, uint64_t>& numbers, const FaultMessage& message) const {
  uint64_t like = MessageKey{message.receiver, message.type, message.digest}.hash();
  if (numbers.size() >= kMostKeys && numbers.find(like) == numbers.end()) {
    like &= kKeyBits;
  }
  return ++numbers[like];
}

uint64_t FaultRules::MessageKey::hash() const {
  SipHash hash(digest, static_cast<uint64_t>(type));
  hash.add(receiver);
  return hash.finish();
}

bool FaultRules::is_on(const FaultRule& rule, Clock::time_point time) const {
  if (rule.start > 0 || rule.end < FaultRule::kForever) {
    const double at = since_start(time);
    if (at < rule.start || at >= rule.end) {
      return false;
    }
  }
  return rule.mark.empty() ||
         std::any_of(marks_.begin(), marks_.end(), [&](const auto& mark) { return matches(rule.mark, mark); });
}

double FaultRules::draw(const State& state, const FaultMessage& message, uint64_t lane) const {
  const auto is_it = [&](const auto& entry) { return entry.first == &state; };
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

double FaultRules::seconds_of(State& state, const FaultMessage& message, bool answer, Clock::time_point at) {
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
      const double uniform1 = 1 - draw(state, message, lane + kLength);
      const double uniform2 = draw(state, message, lane + kLength2);
      seconds += rule.spread * std::sqrt(-2 * std::log(uniform1)) * std::cos(2 * M_PI * uniform2);
      break;
    }
    case FaultRule::Shape::kExponential:
      seconds *= -std::log(1 - draw(state, message, lane + kLength));
      break;
  }
  seconds = std::clamp(seconds, 0.0, kMostSeconds);
  if (rule.kind == FaultKind::kPause) {
    Clock::time_point until = state.paused_until;
    if (at >= until) {
      until = at + duration_of(has_length(rule) ? seconds : rule.end - since_start(at));
    }
    if (!answer) {
      state.paused_until = until;
    }
    seconds = std::chrono::duration<double>(until - at).count();
  } else if (rule.kind == FaultKind::kBandwidth) {
    auto& free_at = state.free_at[(answer ? "<" : ">") + message.receiver];
    free_at = std::min(std::max(free_at, at) + duration_of(message.bytes / rule.rate), at + duration_of(kMostSeconds));
    seconds = std::chrono::duration<double>(free_at - at).count();
  }
  return seconds;
}

std::vector<FaultCount> FaultRules::counts() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<FaultCount> counts;
  for (const StatePtr& state : rules_) {
    // A replay may contain several versions of a rule.
    const auto is_it = [&](const FaultCount& count) { return count.rule == state->rule->name; };
    const auto known = std::find_if(counts.begin(), counts.end(), is_it);
    if (known == counts.end()) {
      counts.push_back({state->rule->name, state->matched, state->fired});
    } else {
      known->matched += state->matched;
      known->fired += state->fired;
    }
  }
  return counts;
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
  Metrics metrics;
  for (const auto& [name, sum] : sums) {
    metrics[name] = std::to_string(sum);
  }
  return metrics;
}

}  // namespace rpc_backends
