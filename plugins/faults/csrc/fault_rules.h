// Fault rules, and the decisions which faults apply to a message.
//
// A random decision depends only on the seed, the rule and the message: its direction, sender, receiver, type, digest,
// and how many identical messages the rule has matched before. Threads, the log and other rules do not matter. Counts
// (`after`, `every`, `first`, `budget`) follow the order in which messages are sent or answers arrive, unless they
// count by payload. Other rules and the log do not change them.
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

// The longest time that a message is held: a year. Clocks overflow at 292 years.
constexpr double kMostSeconds = 31'536'000;

enum class FaultKind {
  kFail,          // the caller gets an error; nothing is sent
  kDrop,          // nothing is sent; the caller times out
  kDelay,         // sent later
  kReplyLost,     // sent; the caller does not get the answer
  kReplyFail,     // sent; the caller gets an error instead of the answer
  kReplyDelay,    // sent; the caller gets the answer later
  kDuplicate,     // sent more than once
  kReorder,       // sent after later requests are answered
  kPartition,     // the link carries neither requests nor answers
  kBandwidth,     // the link carries a limited number of bytes per second
  kPause,         // the worker neither sends nor answers for a while
  kCrash,         // the process ends
  kStop,          // sent after the process was stopped for a while
  kCorrupt,       // sent with a changed bit in a tensor
  kReplyCorrupt,  // sent; the caller gets the answer with a changed bit in a tensor
  kMemory,        // sent; the process can allocate little memory for a while
  kStore,         // sent; the process's stores are slow or do not answer for a while
  kClock,         // sent after the wall clock of the process has jumped
};

const char* kind_name(FaultKind kind);

struct FaultRule {
  static constexpr double kForever = std::numeric_limits<double>::infinity();
  enum class Per { kAll, kPair, kPayload };
  enum class Shape { kFixed, kUniform, kNormal, kExponential };

  std::string name;
  std::string key;       // input of random decisions: the name, or the content of an unnamed rule
  uint64_t version = 0;  // the log's number of the rule set with which this rule was added
  FaultKind kind = FaultKind::kFail;

  // Which messages: patterns with * and ?; an empty list matches all.
  std::vector<std::string> types;
  std::vector<std::string> senders;
  std::vector<std::string> receivers;
  std::vector<std::string> functions;
  bool housekeeping = false;  // whether calls that start and stop a group match, too
  bool one_way = false;       // partition, bandwidth: only from senders to receivers

  // When.
  double probability = 1;
  uint64_t after = 0;
  uint64_t every = 1;
  uint64_t first = 0;  // 0: no limit
  Per per = Per::kAll;
  uint64_t budget = 0;  // 0: no limit
  double start = 0;     // seconds since the agent started
  double end = kForever;
  std::string mark;  // a pattern; empty: regardless of marks

  // What.
  Shape shape = Shape::kFixed;
  double seconds = 0;    // delays, pause: the fixed value, the minimum or the mean, depending on the shape
  double spread = 0;     // the maximum or the standard deviation, depending on the shape
  uint64_t others = 1;   // reorder: how many later requests must be answered first
  double bound = 1;      // reorder: seconds after which the request is sent in any case
  double rate = 0;       // bandwidth: bytes per second
  uint64_t copies = 2;   // duplicate: how many times the request is sent, the original included
  int exit_code = -1;    // crash: -1 means SIGKILL
  std::string text;      // fail, reply_fail: replaces the default error text
  int64_t element = -1;  // corrupt: the element of all tensors; -1: drawn
  int64_t bit = -1;      // corrupt: the bit of the element; -1: drawn
  uint64_t memory = 0;   // memory: how many more bytes the process can allocate
  double each = 0;       // store: how much longer each request takes; 0: none is answered
  double by = 0;         // clock: by how many seconds it jumps

  bool counts_messages() const { return after > 0 || every > 1 || first > 0; }
};

// The properties of a request that rules and the log use.
struct FaultMessage {
  int32_t type = 0;
  std::vector<int32_t> wrappers;
  std::string function;
  int receiver_id = 0;
  std::string receiver;
  uint64_t bytes = 0;
  size_t tensors = 0;
  uint64_t digest = 0;   // only if the log, a replay or a random decision needs it
  uint64_t nth = 0;      // its number among identical messages, from 1; only for the log and replays
  uint64_t payload = 0;  // the digest of every byte; only if a rule counts by payload
  // For each rule with random decisions, by its address: the message's number, from 1, among the identical messages
  // that the rule matched.
  std::vector<std::pair<const void*, uint64_t>> numbers;
};

// A fault that applies to a message.
struct Fault {
  std::shared_ptr<const FaultRule> rule;
  double seconds = 0;  // how long the message or its answer is held
};

using Faults = std::vector<Fault>;

struct FaultCount {
  std::string rule;
  uint64_t matched = 0;
  uint64_t fired = 0;
};

// A message of the recorded run, with its faults.
struct ReplayEntry {
  std::string receiver;
  std::string type;
  std::string function;
  uint64_t digest = 0;
  uint64_t nth = 0;
  double at = 0;                                         // seconds since the agent of that run started
  std::vector<std::pair<size_t, double>> faults;         // index of the rule, seconds
  std::vector<std::pair<size_t, double>> answer_faults;  // index of the rule, seconds
};

// How a replay differs from the recorded run: how many messages were not in the log, and the first of them; how many
// recorded messages were not sent, and one of them.
struct Divergence {
  uint64_t unrecorded = 0;
  std::string first_unrecorded;
  uint64_t missing = 0;
  std::string first_missing;
};

class FaultRules {
 public:
  using Clock = std::chrono::steady_clock;

  explicit FaultRules(std::string worker) : worker_(std::move(worker)) {}

  // Replaces all rules. A rule keeps its counts if its key, its settings and the seed are unchanged.
  void set(std::vector<FaultRule> rules, uint64_t seed, std::vector<std::string> housekeeping);
  // `stall_timeout`: seconds that a message may be later than in the recorded run before the replay counts as stalled.
  void set_replay(std::vector<ReplayEntry> entries, double stall_timeout);
  void set_mark(const std::string& mark, bool on);
  void start() { started_ = Clock::now(); }
  // From now on no fault is applied.
  void close() { closed_ = true; }
  bool is_closed() const { return closed_; }

  // Whether decide() need not be called: there are no rules, no replay and no log.
  bool idle() const { return idle_ && !watched_; }
  // Makes decide() describe every message, for the log.
  void watch(bool on) { watched_ = on; }

  // Decides the faults of a request. Returns nothing if no rule matches it and there is no log. Sets `answers` if
  // decide_answer() must be called for its answer.
  std::optional<FaultMessage> decide(const RequestHead& request, Faults& faults, bool& answers);
  // Decides the faults of the answer to `message`; the answer has `bytes` bytes.
  Faults decide_answer(const FaultMessage& message, uint64_t bytes);
  // Returns the element and the bit that a corruption of this message, or of its answer, changes. They depend on the
  // seed, the name of the rule and the message, so a replay changes the same ones.
  std::pair<uint64_t, uint64_t> place_of(const FaultRule& rule, const FaultMessage& message) const;

  std::vector<FaultCount> counts() const;
  Metrics metrics() const;
  // What a replay has to report now, if anything: the first message that is not in the log, or that recorded messages
  // are overdue. Reports each only once.
  std::optional<std::string> replay_status();
  bool is_replaying() const { return replaying_; }
  double stall_timeout() const { return stall_timeout_; }
  Divergence divergence() const;

 private:
  struct State {
    // Counts for decisions, separately for requests and answers. They do not depend on other rules that end the
    // message, nor on the log.
    struct Counts {
      std::map<std::pair<std::string, uint64_t>, uint64_t> messages;  // by `per`
      uint64_t chosen = 0;
    };
    std::shared_ptr<const FaultRule> rule;
    std::array<Counts, 2> counts;                    // requests, answers
    std::unordered_map<uint64_t, uint64_t> numbers;  // identical messages so far, by the hash of their MessageKey
    std::unordered_map<std::string, Clock::time_point> free_at;  // bandwidth: by link
    Clock::time_point paused_until{};
    // Only for reports and metrics:
    uint64_t matched = 0;
    uint64_t fired = 0;
    std::map<std::pair<std::string, std::string>, uint64_t> fired_by;  // by type and receiver
  };
  using StatePtr = std::shared_ptr<State>;

  // The rules that match a message, and what they need to know of it.
  struct Selected {
    std::vector<StatePtr> requests;
    std::vector<StatePtr> answers;
    std::vector<StatePtr> drawing;  // the rules of both lists with random decisions, each once
    bool ask_payload = false;
  };

  // The rules that match messages of one type to one receiver, also by function.
  struct Route {
    std::string receiver;
    Selected all;
    bool ask_function = false;
    std::unordered_map<std::string, Selected> by_function;
  };

  struct MessageKey {
    std::string receiver;
    int32_t type;
    uint64_t digest;
    bool operator<(const MessageKey& other) const {
      return std::tie(receiver, type, digest) < std::tie(other.receiver, other.type, other.digest);
    }
    uint64_t hash() const;
  };

  Route& route_to(int receiver_id, const std::string& receiver, int32_t type);
  const Selected& for_function(Route& route, const std::string& function);
  static void summarise(Selected& selected);
  FaultMessage decide_locked(FaultMessage seen, const Selected& selected, bool describe, Faults& faults);
  uint64_t number(std::unordered_map<uint64_t, uint64_t>& numbers, const FaultMessage& message) const;
  Faults apply_all(const std::vector<StatePtr>& rules, const FaultMessage& message, bool answer);
  // The whole way of a rule with a message that it selects: match, limit, decide, apply. Returns what FaultPipeline
  // does to the request, or to its answer if `answer` is true. `ended`: an earlier rule lets the message go no further.
  std::optional<Fault> apply(State& state, const FaultMessage& message, bool answer, bool ended);
  double seconds_of(State& state, const FaultMessage& message, bool answer, Clock::time_point at);
  double draw(const State& state, const FaultMessage& message, uint64_t lane) const;
  bool is_on(const FaultRule& rule, Clock::time_point time) const;
  bool is_housekeeping(const std::string& function) const;
  double since_start(Clock::time_point time) const { return std::chrono::duration<double>(time - started_).count(); }
  // Whether the patterns of a rule match requests of this type to `receiver`, or the answers to them, whichever
  // function they call.
  bool selects(const FaultRule& rule, int32_t type, const std::string& receiver, bool answer) const;
  bool sent_by(const FaultRule& rule, const std::string& sender, const std::string& receiver) const;
  enum class Expected { kYes, kMaybe };
  // `expected`: kYes counts a message that is not in the log as a divergence.
  void replay(const FaultMessage& message, bool answer, Expected expected, Faults& faults);

  const std::string worker_;
  mutable std::mutex mutex_;
  std::atomic<bool> idle_{true};
  std::atomic<bool> watched_{false};
  std::atomic<bool> closed_{false};
  std::atomic<uint64_t> seed_{0};
  Clock::time_point started_ = Clock::now();
  std::vector<StatePtr> rules_;
  std::vector<std::string> housekeeping_;
  std::map<std::pair<int, int32_t>, Route> routes_;
  std::unordered_map<uint64_t, uint64_t> seen_;  // identical messages so far, by the hash of their MessageKey
  std::set<std::string> marks_;

  using Recorded = std::pair<MessageKey, uint64_t>;
  std::string stalled();

  std::atomic<bool> replaying_{false};
  double stall_timeout_ = 0;
  std::map<Recorded, ReplayEntry> replay_;
  std::vector<Recorded> order_;  // the recorded messages in their order
  size_t next_ = 0;              // all recorded messages before this index were sent
  size_t reported_ = SIZE_MAX;   // the index that was last reported as overdue
  std::set<Recorded> replayed_;
  Clock::time_point progress_{};  // when a recorded message was last sent
  double progress_at_ = 0;        // the latest time, in the recorded run, of the messages sent so far
  uint64_t unrecorded_ = 0;
  bool reported_unrecorded_ = false;
  std::string first_unrecorded_;
};

// Whether a pattern with * (any text) and ? (any one byte) matches the whole `text`.
bool matches(const std::string& pattern, const std::string& text);
// Whether one of the patterns matches; an empty list matches all.
bool any_matches(const std::vector<std::string>& patterns, const std::string& text);

}  // namespace rpc_backends
