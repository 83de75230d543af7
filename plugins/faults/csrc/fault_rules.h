// Rules of fault injection, and deciding by them which faults a message meets.
//
// A decision that is left to chance depends on the seed, the rule and the message (its direction, who sends it to
// whom, its type, its digest, and how many like it the rule was for before) and on nothing else: not on threads, the
// log or other rules. Counts (`after`, `every`, `first`, `budget`) go by the order in which messages are sent, or
// answers come, unless they count by payload; other rules and the log change none of them.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rpc_backends_agents/interceptor.h"

namespace rpc_backends {

// No message is held for longer: a year. Clocks overflow at 292.
constexpr double kMostSeconds = 31'536'000;

enum class FaultKind {
  kFail,        // an error for the caller; nothing is sent
  kDrop,        // nothing is sent; the caller's time runs out
  kDelay,       // sent later
  kReplyLost,   // sent, and the answer is kept from the caller
  kReplyFail,   // sent, and the answer becomes an error
  kReplyDelay,  // sent, and the answer comes later
  kDuplicate,   // sent more than once
  kReorder,     // sent when others have passed
  kPartition,   // a link that carries nothing, neither requests nor answers
  kBandwidth,   // a link that carries so many bytes a second
  kPause,       // a worker that neither sends nor answers for a while
  kCrash,       // the process ends
};

const char* kind_name(FaultKind kind);

struct FaultRule {
  static constexpr double kForever = std::numeric_limits<double>::infinity();
  enum class Per { kAll, kPair, kPayload };
  enum class Shape { kFixed, kUniform, kNormal, kExponential };

  std::string name;
  std::string key;       // what draws go by: the name; of a rule without one, what it says
  uint64_t version = 0;  // of the rules, as the log counts them, that it came with
  FaultKind kind = FaultKind::kFail;

  // Which messages: patterns with * and ?; none is all.
  std::vector<std::string> types;
  std::vector<std::string> senders;
  std::vector<std::string> receivers;
  std::vector<std::string> functions;
  bool housekeeping = false;  // also the calls by which torch starts and stops a group
  bool one_way = false;       // partition, bandwidth: from senders to receivers alone

  // When.
  double probability = 1;
  uint64_t after = 0;
  uint64_t every = 1;
  uint64_t first = 0;  // 0: no limit
  Per per = Per::kAll;
  uint64_t budget = 0;  // 0: no limit
  double start = 0;     // seconds since the agent was started
  double end = kForever;
  std::string mark;  // a pattern; empty: whatever marks are on

  // What.
  Shape shape = Shape::kFixed;
  double seconds = 0;  // delays, pause: fixed; the least, the mean, by shape
  double spread = 0;   // the most, the standard deviation, by shape
  uint64_t others = 1;  // reorder
  double bound = 1;     // reorder: seconds after which it goes anyway
  double rate = 0;      // bandwidth: bytes a second
  uint64_t copies = 2;  // duplicate
  int exit_code = -1;   // crash: -1 is SIGKILL
  std::string text;     // fail, reply_fail: instead of ours
};

// A request, as rules and the log look at it.
struct FaultMessage {
  int32_t type = 0;
  std::vector<int32_t> wrappers;
  std::string function;
  std::string receiver;
  uint64_t bytes = 0;
  uint64_t digest = 0;   // where the log, a replay or a draw needs it
  uint64_t nth = 0;      // among those that are like it, from 1: for the log and a replay
  uint64_t payload = 0;  // the digest of every byte, where a rule counts by that
  // For each rule that draws, by its address: among those like it that the rule was for, from 1.
  std::vector<std::pair<const void*, uint64_t>> numbers;
};

// A fault that a message meets.
struct Fault {
  std::shared_ptr<const FaultRule> rule;
  double seconds = 0;  // how long it is held, or its answer
};

using Faults = std::vector<Fault>;

struct FaultCount {
  std::string rule;
  uint64_t matched = 0;
  uint64_t fired = 0;
};

// What the faults of an earlier run were, by message.
struct ReplayEntry {
  std::string receiver;
  std::string type;
  std::string function;
  uint64_t digest = 0;
  uint64_t nth = 0;
  double at = 0;                                         // seconds since that run's agent was started
  std::vector<std::pair<size_t, double>> faults;         // which of the rules, seconds
  std::vector<std::pair<size_t, double>> answer_faults;  // which of the rules, seconds
};

class FaultRules {
 public:
  using Clock = std::chrono::steady_clock;

  explicit FaultRules(std::string worker) : worker_(std::move(worker)) {}

  // Replaces all rules. What a rule has counted goes on where one of its key stays as it was, and the seed does.
  void set(std::vector<FaultRule> rules, uint64_t seed, std::vector<std::string> housekeeping);
  // `patience`: seconds that a replay may take longer than the log did before that is worth a word.
  void set_replay(std::vector<ReplayEntry> entries, double patience);
  void set_mark(const std::string& mark, bool on);
  void start() { started_ = Clock::now(); }
  // While closed, no message meets a fault.
  void close() { closed_ = true; }
  bool is_closed() const { return closed_; }

  // Whether there is nothing to ask decide() for, and nothing that it has to see.
  bool idle() const { return idle_ && !watched_; }
  // Has every message described, for the log.
  void watch(bool on) { watched_ = on; }

  // What a request meets on its way. Empty and none where no rule is for such a message, and
  // nobody watches. `answers` tells whether its answer has to be shown to decide_answer().
  std::optional<FaultMessage> decide(const RequestHead& request, Faults& faults, bool& answers);
  // What the answer meets, `bytes` long.
  Faults decide_answer(const FaultMessage& message, uint64_t bytes);

  std::vector<FaultCount> counts() const;
  std::map<std::string, std::string> metrics() const;
  // What a replay has to say now: the first message that the log does not have, or that nothing of the log has come
  // for too long. Each is said once.
  std::optional<std::string> news();
  bool is_replaying() const { return replaying_; }
  double patience() const { return patience_; }
  // Of a replay: how many messages were not in the log, what the first was, and what of the log never came.
  uint64_t strangers() const;
  std::string first_stranger() const;
  uint64_t missing() const;
  std::string first_missing() const;

 private:
  struct State {
    // What decides about requests, and apart from it about answers: whether others end the message, and whether
    // anybody watches, changes none of it.
    struct Counts {
      std::map<std::pair<std::string, uint64_t>, uint64_t> messages;  // by `per`
      uint64_t chosen = 0;
    };
    std::shared_ptr<const FaultRule> rule;
    std::array<Counts, 2> counts;                    // requests, answers
    std::unordered_map<uint64_t, uint64_t> numbers;  // how many of a kind, by a hash of what is alike
    std::unordered_map<std::string, Clock::time_point> free_at;  // bandwidth: by link
    Clock::time_point paused_until{};
    // For people to read:
    uint64_t matched = 0;
    uint64_t fired = 0;
    std::map<std::pair<std::string, std::string>, uint64_t> fired_by;  // by type and receiver
  };
  using StatePtr = std::shared_ptr<State>;

  // Which rules are for a message, and what of it they have to know.
  struct Selected {
    std::vector<StatePtr> requests;
    std::vector<StatePtr> answers;
    std::vector<StatePtr> drawing;  // of both, each once
    bool ask_payload = false;
  };

  // Which rules are for a message, as far as that stays the same for its like.
  struct Route {
    std::string receiver;
    Selected all;
    bool ask_function = false;
    std::unordered_map<std::string, Selected> by_function;
  };

  struct Like {
    std::string receiver;
    int32_t type;
    uint64_t digest;
    bool operator<(const Like& other) const {
      return std::tie(receiver, type, digest) < std::tie(other.receiver, other.type, other.digest);
    }
    uint64_t hash() const;
  };

  Route& route_to(int receiver_id, const std::string& receiver, int32_t type);
  const Selected& for_function(Route& route, const std::string& function);
  static void look_through(Selected& selected);
  FaultMessage decide_locked(FaultMessage seen, const Selected& selected, bool describe, Faults& faults);
  uint64_t number(std::unordered_map<uint64_t, uint64_t>& numbers, const FaultMessage& message) const;
  bool fires(State& state, const FaultMessage& message, bool answer);
  double seconds_of(State& state, const FaultMessage& message, bool answer);
  double draw(const State& state, const FaultMessage& message, uint64_t lane) const;
  // Counts a fault; `whole` unless it is a further message that meets the same one.
  static void count(State& state, const FaultMessage& message, bool whole = true);
  bool is_on(const FaultRule& rule) const;
  bool is_housekeeping(const std::string& function) const;
  double now() const { return std::chrono::duration<double>(Clock::now() - started_).count(); }
  bool sent_by(const FaultRule& rule, const std::string& sender, const std::string& receiver) const;
  enum class Expected { kYes, kMaybe };
  // `expected`: whether a message that is not in the log is worth a word.
  void replay(const FaultMessage& message, bool answer, Expected expected, Faults& faults);

  const std::string worker_;
  mutable std::mutex mutex_;
  std::atomic<bool> idle_{true};
  std::atomic<bool> watched_{false};
  std::atomic<bool> closed_{false};
  uint64_t seed_ = 0;
  Clock::time_point started_ = Clock::now();
  std::vector<StatePtr> rules_;
  std::vector<std::string> housekeeping_;
  std::map<std::pair<int, int32_t>, Route> routes_;
  std::unordered_map<uint64_t, uint64_t> seen_;  // how many of a kind, by a hash of what is alike
  std::set<std::string> marks_;

  using Recorded = std::pair<Like, uint64_t>;
  std::string stalled();

  std::atomic<bool> replaying_{false};
  double patience_ = 0;
  std::map<Recorded, ReplayEntry> replay_;
  std::vector<Recorded> order_;  // in which they were recorded
  size_t next_ = 0;              // all before it in that order have come
  size_t told_ = SIZE_MAX;       // which of them was said to be late
  std::set<Recorded> replayed_;
  Clock::time_point progress_{};  // when one came that was recorded
  double progress_at_ = 0;        // and when the latest of those was recorded
  uint64_t strangers_ = 0;
  bool told_strangers_ = false;
  std::string first_stranger_;
};

// Whether `text` is what a pattern with * and ? describes.
bool matches(const std::string& pattern, const std::string& text);

}  // namespace rpc_backends
