// The decisions of fault rules: they depend on the seed, the rule and the message, and on nothing else.
#include "fault_rules.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace rpc_backends {
namespace {

// A request of worker0 to a peer.
class Head final : public RequestHead {
 public:
  Head(int peer_id, int32_t type, std::string function, uint64_t digest)
      : peer_id_(peer_id),
        peer_("worker" + std::to_string(peer_id)),
        type_(type),
        function_(std::move(function)),
        digest_(digest) {}

  Direction direction() const override { return Direction::kOutgoing; }
  int32_t type() const override { return type_; }
  const std::vector<int32_t>& wrappers() const override { return wrappers_; }
  int peer_id() const override { return peer_id_; }
  std::string_view peer() const override { return peer_; }
  std::string_view worker() const override { return "worker0"; }
  std::chrono::milliseconds timeout() const override { return {}; }
  uint64_t payload_bytes() const override { return 100; }
  size_t tensors() const override { return 0; }
  std::string_view function() const override { return function_; }
  uint64_t tensor_bytes() const override { return 0; }
  uint64_t digest() const override { return digest_; }
  uint64_t full_digest() const override { return digest_ + 1; }

 private:
  const int peer_id_;
  const std::string peer_;
  const int32_t type_;
  const std::string function_;
  const uint64_t digest_;
  const std::vector<int32_t> wrappers_;
};

FaultRule rule(const char* name, FaultKind kind) {
  FaultRule made;
  made.name = made.key = name;
  made.kind = kind;
  return made;
}

// One rule of each kind, with every limit and every distribution.
std::vector<FaultRule> every_rule() {
  FaultRule fail = rule("fail", FaultKind::kFail);
  fail.probability = 0.3;
  fail.functions = {"work.*"};
  FaultRule drop = rule("drop", FaultKind::kDrop);
  drop.after = 3;
  drop.every = 4;
  drop.first = 5;
  drop.per = FaultRule::Per::kPair;
  FaultRule delay = rule("delay", FaultKind::kDelay);
  delay.probability = 0.5;
  delay.shape = FaultRule::Shape::kUniform;
  delay.seconds = 1;
  delay.spread = 3;
  FaultRule reply_lost = rule("reply_lost", FaultKind::kReplyLost);
  reply_lost.receivers = {"worker2"};
  reply_lost.budget = 4;
  FaultRule reply_fail = rule("reply_fail", FaultKind::kReplyFail);
  reply_fail.first = 1;
  reply_fail.per = FaultRule::Per::kPayload;
  FaultRule reply_delay = rule("reply_delay", FaultKind::kReplyDelay);
  reply_delay.shape = FaultRule::Shape::kNormal;
  reply_delay.seconds = 2;
  reply_delay.spread = 1;
  reply_delay.housekeeping = true;
  FaultRule duplicate = rule("duplicate", FaultKind::kDuplicate);
  duplicate.probability = 0.3;
  FaultRule reorder = rule("reorder", FaultKind::kReorder);
  reorder.types = {"PYTHON_*"};
  reorder.shape = FaultRule::Shape::kExponential;
  reorder.seconds = 1;
  reorder.every = 3;
  FaultRule partition = rule("partition", FaultKind::kPartition);
  partition.receivers = {"worker3"};
  partition.probability = 0.2;
  FaultRule bandwidth = rule("bandwidth", FaultKind::kBandwidth);
  bandwidth.receivers = {"worker1"};
  bandwidth.rate = 1e12;
  FaultRule pause = rule("pause", FaultKind::kPause);
  pause.senders = {"worker0"};
  pause.seconds = 1000;
  pause.after = 120;
  pause.budget = 1;
  FaultRule peer_pause = rule("peer_pause", FaultKind::kPause);
  peer_pause.senders = {"worker2"};
  peer_pause.seconds = 1000;
  peer_pause.after = 20;
  peer_pause.budget = 1;
  FaultRule marked = rule("marked", FaultKind::kCrash);
  marked.mark = "epoch*";
  marked.probability = 0.05;
  FaultRule stop = rule("stop", FaultKind::kStop);
  stop.end = 0;
  return {fail,    drop,      delay,     reply_lost, reply_fail, reply_delay, duplicate,
          reorder, partition, bandwidth, pause,      peer_pause, marked,      stop};
}

// The log of decisions about 200 requests and their answers: of each fault the rule, and its seconds in thousandths,
// except where the clock has a part in them.
std::string decisions(FaultRules& rules) {
  const std::vector<std::pair<int32_t, std::string>> calls = {
      {kPythonCall, "work.step"}, {kPythonCall, "other.step"},          {kScriptCall, "torch.ops.aten.add"},
      {kRRefUserDelete, ""},      {kPythonRemoteCall, "house.keeping"}, {kBackwardAutogradRequest, ""}};
  std::string log;
  const auto add = [&](const Faults& faults) {
    for (const Fault& fault : faults) {
      char seconds[40] = "";
      if (fault.rule->rate == 0 && fault.rule->kind != FaultKind::kPause) {
        std::snprintf(seconds, sizeof(seconds), "=%.3f", fault.seconds);
      }
      log += " " + fault.rule->name + seconds;
    }
  };
  for (int n = 0; n < 200; ++n) {
    const auto& [type, function] = calls[n % calls.size()];
    Head head(1 + n * 7 / 5 % 3, type, function, static_cast<uint64_t>(n % 11));
    rules.set_mark("epoch 1", n % 20 < 10);
    Faults faults;
    bool answers = false;
    const auto message = rules.decide(head, faults, answers);
    log += std::to_string(n) + ":";
    add(faults);
    if (answers) {
      log += " |";
      add(rules.decide_answer(*message, 50));
    }
    log += "\n";
  }
  for (const FaultCount& count : rules.counts()) {
    log += count.rule + " " + std::to_string(count.matched) + " " + std::to_string(count.fired) + "\n";
  }
  return log;
}

std::string run(uint64_t seed, bool watched) {
  FaultRules rules("worker0");
  rules.set(every_rule(), seed, {"house.*"});
  rules.start();
  rules.watch(watched);
  return decisions(rules);
}

uint64_t fnv1a(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const unsigned char byte : text) {
    hash = (hash ^ byte) * 0x100000001b3;
  }
  return hash;
}

TEST(FaultRules, DecidesAsEarlierReleasesForTheSameSeed) {
  const std::string log = run(7, true);
  EXPECT_EQ(fnv1a(log), 5692838097758274221u) << log;
}

TEST(FaultRules, DecidesAlikeWithAndWithoutALog) {
  EXPECT_EQ(run(7, true), run(7, false));
}

TEST(FaultRules, AnotherSeedDecidesOtherwise) {
  EXPECT_NE(run(7, true), run(8, true));
}

TEST(FaultRules, AnotherRuleInFrontDoesNotChangeADecision) {
  FaultRule sometimes = rule("sometimes", FaultKind::kFail);
  sometimes.probability = 0.3;
  FaultRule delay = rule("delay", FaultKind::kDelay);
  delay.seconds = 1;
  const auto failed = [&](std::vector<FaultRule> all) {
    FaultRules rules("worker0");
    rules.set(std::move(all), 7, {});
    std::vector<int> numbers;
    for (int n = 0; n < 100; ++n) {
      Faults faults;
      bool answers = false;
      rules.decide(Head(1, kPythonCall, "work.step", static_cast<uint64_t>(n)), faults, answers);
      if (!faults.empty() && faults.back().rule->kind == FaultKind::kFail) {
        numbers.push_back(n);
      }
    }
    return numbers;
  };
  const std::vector<int> alone = failed({sometimes});
  EXPECT_GT(alone.size(), 10u);
  EXPECT_EQ(alone, failed({delay, sometimes}));
}

}  // namespace
}  // namespace rpc_backends
