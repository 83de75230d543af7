#include "agent/answers.h"

#include <gtest/gtest.h>

namespace rpc_backends {
namespace {

constexpr uint64_t kMost = 1000;

TEST(Answers, APeerIsBehindUntilItsAnswersAreSent) {
  Answers answers(kMost);
  auto first = std::make_shared<int>(), second = std::make_shared<int>();
  answers.add(1, 600, first);
  EXPECT_FALSE(answers.is_behind(1));
  answers.add(1, 600, second);
  EXPECT_TRUE(answers.is_behind(1));
  first.reset();
  EXPECT_FALSE(answers.is_behind(1));
}

TEST(Answers, OnlyThePeerWithUnsentAnswersIsBehind) {
  Answers answers(kMost);
  const auto unsent = std::make_shared<int>();
  answers.add(1, kMost + 1, unsent);
  EXPECT_TRUE(answers.is_behind(1));
  EXPECT_FALSE(answers.is_behind(2));
}

TEST(Answers, ExactlyTheLimitIsNotBehind) {
  Answers answers(kMost);
  const auto unsent = std::make_shared<int>();
  answers.add(1, kMost, unsent);
  EXPECT_FALSE(answers.is_behind(1));
}

TEST(Answers, AnAnswerSentOutOfOrderCountsUntilEarlierOnesAreSent) {
  Answers answers(kMost);
  auto first = std::make_shared<int>(), second = std::make_shared<int>();
  answers.add(1, 600, first);
  answers.add(1, 600, second);
  second.reset();
  EXPECT_TRUE(answers.is_behind(1));
  first.reset();
  EXPECT_FALSE(answers.is_behind(1));
}

}  // namespace
}  // namespace rpc_backends
