// Pickles that torch reads in C++ are refused if reading them takes memory or stack without a limit.
#include "inspect/torch_pickle.h"

#include <gtest/gtest.h>

#include <string>

#include "agent/request_policy.h"
#include "rpc_backends_agents/interceptor.h"

namespace rpc_backends {
namespace {

using namespace std::string_literals;

// The ids of an RRef and of a reference to it, as torch writes them.
const std::string kIds = "\x80\x02K\1K\2\x86q\0K\1K\3\x86q\1\x86q\2."s;

std::string problem(const std::string& pickle) {
  return torch_pickle_problem(pickle, PickleLimits{});
}

std::string text(const std::string& value) {
  return "X"s + static_cast<char>(value.size() & 0xff) + static_cast<char>(value.size() >> 8) + "\0\0"s + value;
}

// A list with the name of its type.
std::string typed(const std::string& type) {
  return "\x80\x02" + "ctorch.jit._pickle\nrestore_type_tag\nq\0](K\1e"s + text(type) + "q\1\x86R."s;
}

TEST(TorchPickleTest, WhatTorchWritesIsRead) {
  EXPECT_EQ(problem(kIds), "");
  EXPECT_EQ(problem(typed("List[Dict[str, List[int]]]")), "");
  EXPECT_EQ(problem("\x80\x02(K\1q\0G\0\0\0\0\0\0\0\0\x8a\x08\1\0\0\0\0\0\0\0h\0t."s), "");
}

TEST(TorchPickleTest, TheMemoIsNumberedInOrder) {
  // Torch would reserve 64 GiB for it.
  EXPECT_NE(problem("\x80\x02K\1r\xff\xff\xff\xff."s), "");
  EXPECT_NE(problem("\x80\x02K\1q\1."s), "");
  EXPECT_NE(problem("\x80\x02j\0\0\0\1."s), "");
}

TEST(TorchPickleTest, LengthsLieInThePickle) {
  // Torch would reserve 4 GiB for it.
  EXPECT_NE(problem("\x80\x02X\xff\xff\xff\xffshort."s), "");
  EXPECT_NE(problem("\x80\x02\x8a\xff\1."s), "");
  EXPECT_NE(problem("\x80\x02K"s), "");
  EXPECT_NE(problem(""), "");
  EXPECT_NE(problem("\x80\x02K\1.more"s), "");
}

TEST(TorchPickleTest, ValuesAndTypesAreNestedToALimit) {
  // Torch destroys values, and reads types, by recursion.
  const auto nested = [](int depth) { return "\x80\x02)"s + std::string(depth, '\x85') + "."; };
  EXPECT_EQ(problem(nested(90)), "");
  EXPECT_NE(problem(nested(200)), "");
  std::string type = "int";
  for (int i = 0; i < 40; ++i) {
    type = "List[" + type + "]";
  }
  EXPECT_NE(problem(typed(type)), "");
  EXPECT_NE(problem("\x80\x02]q\0h\0a."s), "") << "a list that holds itself";
}

TEST(TorchPickleTest, ContainersCountAsMemory) {
  EXPECT_NE(torch_pickle_problem("\x80\x02("s + std::string(10000, '}') + "t.", PickleLimits{100, 1 << 20}), "");
}

TEST(TorchPickleTest, APolicyRefusesSuchRequestsAndAnswers) {
  RequestPolicy policy({}, "ps", true, false, -1);
  EXPECT_EQ(policy.refusal("trainer0", kRRefUserDelete, kIds), "");
  const std::string bomb = "\x80\x02K\1r\xff\xff\xff\xff."s;
  for (const int32_t type : {kRRefUserDelete, kRRefForkRequest, kRRefChildAccept, kCleanupAutogradContextRequest}) {
    EXPECT_EQ(policy.refusal("trainer0", type, bomb),
              "worker 'ps' refuses a request of 'trainer0', by its guard policy: its pickle does not number its memo "
              "as torch does");
  }
  constexpr int32_t kRemoteReturn = 0x206;
  constexpr int32_t kPythonReturn = 0x203;
  EXPECT_EQ(policy.answer_refusal("trainer0", kRemoteReturn, kIds), "");
  EXPECT_NE(policy.answer_refusal("trainer0", kRemoteReturn, bomb), "");
  EXPECT_EQ(policy.answer_refusal("trainer0", kPythonReturn, bomb), "") << "Python decides";
  EXPECT_EQ(policy.refused(), 5U);
}

}  // namespace
}  // namespace rpc_backends
