// Rules of fault injection, and deciding by them which faults a message meets.
//
// A decision depends on the seed, the rule and the message (who sends it to whom, its type, its digest, and how
// many like it came before) and on nothing else: not on threads, other messages or other rules. Counts (`after`,
// `every`, `first`, `budget`) go by the order in which messages are sent.
#pragma once

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
  uint64_t digest = 0;
  uint64_t nth = 0;      // among those that are like it, from 1
  uint64_t payload = 0;  // the digest of every byte, where a rule counts by that
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
  uint64_t digest = 0;
  uint64_t nth = 0;
  std::vector<std::pair<std::string, double>> faults;         // rule, seconds
  std::vector<std::pair<std::string, double>> answer_faults;  // rule, seconds
};

class FaultRules {
 public:
  using Clock = std::chrono::steady_clock;

  explicit FaultRules(std::string worker) : worker_(std::move(worker)) {}

  // Replaces all rules. What a rule has counted goes on where one of its name stays as it was.
  void set(std::vector<FaultRule> rules, uint64_t seed, std::vector<std::string> housekeeping);
  void set_replay(std::vector<ReplayEntry> entries);
  void set_mark(const std::string& mark, bool on);
  void start() { started_ = Clock::now(); }
  // While closed, no message meets a fault.
  void close() { closed_ = true; }

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
  // Of a replay: how many messages were not in the log, what the first was, and what of the log never came.
  uint64_t strangers() const;
  std::string first_stranger() const;
  uint64_t missing() const;
  std::string first_missing() const;

 private:
  struct State {
    std::shared_ptr<const FaultRule> rule;
    uint64_t matched = 0;
    uint64_t fired = 0;
    std::map<std::pair<std::string, uint64_t>, uint64_t> counts;  // by `per`
    std::unordered_map<std::string, Clock::time_point> free_at;   // bandwidth: by link
    Clock::time_point paused_until{};
    std::map<std::pair<std::string, std::string>, uint64_t> fired_by;  // by type and receiver
  };
  using StatePtr = std::shared_ptr<State>;

  // Which rules are for a message, as far as that stays the same for its like.
  struct Route {
    std::string receiver;
    std::vector<StatePtr> requests;
    std::vector<StatePtr> answers;
    bool ask_function = false;
    bool ask_payload = false;
    std::unordered_map<std::string, std::vector<StatePtr>> by_function;
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
  const std::vector<StatePtr>& for_function(Route& route, const std::string& function);
  bool fires(State& state, const FaultMessage& message, bool answer);
  double seconds_of(State& state, const FaultMessage& message, bool answer);
  double draw(const FaultRule& rule, const FaultMessage& message, uint64_t lane) const;
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

  bool replaying_ = false;
  std::map<std::pair<Like, uint64_t>, ReplayEntry> replay_;
  std::set<std::pair<Like, uint64_t>> replayed_;
  uint64_t strangers_ = 0;
  std::string first_stranger_;
};

// Whether `text` is what a pattern with * and ? describes.
bool matches(const std::string& pattern, const std::string& text);

}  // namespace rpc_backends
