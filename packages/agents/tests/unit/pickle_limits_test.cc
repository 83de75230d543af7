// What would harm a process is found in a pickle without executing it.
#include "inspect/pickle_limits.h"

#include <gtest/gtest.h>

#include <string>

namespace rpc_backends {
namespace {

using namespace std::string_literals;

constexpr PickleLimits kLimits{50, 1 << 20, 100};

std::string check(const std::string& opcodes) {
  return check_pickle("\x80\x04" + opcodes + ".", kLimits).problem;
}

std::string times(const std::string& opcodes, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) {
    all += opcodes;
  }
  return all;
}

TEST(PickleLimitsTest, AValueOfContainersPasses) {
  EXPECT_EQ(check("}(X\1\0\0\0aK\1X\1\0\0\0b](K\1K\2eu"s), "");
}

TEST(PickleLimitsTest, WhatPythonDoesNotWriteIsRefused) {
  const std::string opcodes[] = {"\x82\x01"s,
                                 "\x83\x01\x00"s,
                                 "\x84\x01\x00\x00\x00"s,
                                 "Px\n"s,
                                 "NQ"s,
                                 "cos\nmkdir\n"s,
                                 "(ios\nmkdir\n"s,
                                 "(No"s,
                                 "N2"s,
                                 "\x97"s,
                                 "I1\n"s,
                                 "S'x'\n"s,
                                 "Nr\xff\xff\xff\x7f"s,
                                 "Nq\x00"s,
                                 "\x8b\x01\x00\x00\x00\x01"s};
  for (const std::string& opcode : opcodes) {
    EXPECT_NE(check(opcode), "") << opcode;
  }
}

TEST(PickleLimitsTest, BytesAfterTheEndAreRefused) {
  EXPECT_NE(check_pickle("\x80\x04N.N."s, kLimits).problem, "");
}

TEST(PickleLimitsTest, DepthIsBounded) {
  EXPECT_EQ(check(")" + times("\x85", 40)), "");
  EXPECT_NE(check(")" + times("\x85", 60)), "");
  EXPECT_NE(check(times("]", 60) + times("a", 59)), "");
}

TEST(PickleLimitsTest, DepthThroughTheMemoIsBounded) {
  // A tuple of two references to the tuple before it, again and again.
  std::string opcodes = ")\x94"s;
  for (int i = 0; i < 60; ++i) {
    opcodes += "h"s + static_cast<char>(i) + "h"s + static_cast<char>(i) + "\x86\x94"s;
  }
  EXPECT_NE(check(opcodes), "");
}

TEST(PickleLimitsTest, MemoryIsBounded) {
  EXPECT_EQ(check("](" + times("]", 1000) + "e"), "");
  EXPECT_NE(check("](" + times("]", 100'000) + "e"), "");
}

TEST(PickleLimitsTest, TruncatedAndEmptyStacksAreRefused) {
  const std::string opcodes[] = {""s,
                                 "R"s,
                                 "t"s,
                                 "\x86"s,
                                 "NN"s,
                                 "(N"s,
                                 "a"s,
                                 "(a"s,
                                 "b"s,
                                 "\x93"s,
                                 "X\xff\xff\xff\x7fx"s,
                                 "\x8d\xff\xff\xff\xff\xff\xff\xff\xff"s,
                                 "h\x00"s,
                                 "\x94"s,
                                 "0"s,
                                 "1"s,
                                 "(s"s};
  for (const std::string& opcode : opcodes) {
    EXPECT_NE(check(opcode), "") << opcode;
  }
}

TEST(PickleLimitsTest, OnlyTheStateOfMadeObjectsIsSet) {
  const std::string of_class = "X\1\0\0\0mX\1\0\0\0C\x93"s;
  EXPECT_EQ(check(of_class + ")\x81}b"), "");
  EXPECT_EQ(check(of_class + ")R}b"), "");
  EXPECT_NE(check(of_class + "}b"), "") << "a class";
  EXPECT_NE(check(of_class + ")R)R}b"), "") << "what a made object returns, such as a tensor";
  EXPECT_NE(check("X\1\0\0\0mX\x09\0\0\0_rebuild_\x93)R}b"s), "") << "a tensor";
  EXPECT_NE(check("]}b"), "") << "a list";
}

// A tuple of two references to the tuple before it, again and again: its hash visits 2^levels values.
std::string shared_tuple(int levels) {
  std::string opcodes = "K\1\x85\x94"s;
  for (int i = 0; i < levels; ++i) {
    opcodes += "0h"s + static_cast<char>(i) + "h"s + static_cast<char>(i) + "\x86\x94"s;
  }
  return opcodes;
}

TEST(PickleLimitsTest, KeysThatTakeLongToHashAreRefused) {
  const std::string of_class = "X\1\0\0\0mX\1\0\0\0C\x93"s;
  EXPECT_EQ(check(shared_tuple(40)), "") << "no key";
  EXPECT_EQ(check("}" + shared_tuple(5) + "Ns"), "");
  EXPECT_NE(check("}" + shared_tuple(40) + "Ns"), "");
  EXPECT_NE(check("}(" + shared_tuple(40) + "Nu"), "");
  EXPECT_NE(check("\x8f(" + shared_tuple(40) + "\x90"), "");
  EXPECT_NE(check("(" + shared_tuple(40) + "\x91"), "");
  EXPECT_NE(check(of_class + shared_tuple(40) + "\x85R"), "") << "an enum looks its argument up";
}

TEST(PickleLimitsTest, KeysWithChosenHashesAreFew) {
  std::string keys;
  for (int i = 1; i <= 200; ++i) {
    keys += "\x8a\x08" + std::string(7, static_cast<char>(i)) + "\1N";
  }
  EXPECT_NE(check("}(" + keys + "u"), "");
  EXPECT_EQ(check("}(" + times("K\1N", 200) + "u"), "");
  EXPECT_NE(check("}(" + times("K\1\x85N", 200) + "u"), "") << "tuples";
  EXPECT_EQ(check("](" + times("K\1\x85N", 200) + "e"), "") << "no keys";
}

TEST(PickleLimitsTest, OnlyContainersAndMadeObjectsGetItems) {
  const std::string of_class = "X\1\0\0\0mX\1\0\0\0C\x93"s;
  EXPECT_EQ(check(of_class + ")RK\1Ns"), "");
  EXPECT_NE(check(of_class + ")R)RK\1Ns"), "") << "a tensor";
  EXPECT_NE(check("X\1\0\0\0mX\x09\0\0\0_rebuild_\x93)RNa"s), "") << "a tensor";
  EXPECT_NE(check("}Na"), "");
  EXPECT_NE(check("]NNs"), "");
  EXPECT_NE(check("](N\x90"), "");
}

TEST(PickleLimitsTest, DepthIsNotHiddenByTheMemo) {
  // Empty lists are kept, then each is put into the next one by its entry.
  std::string opcodes = "]\x94"s;
  for (int i = 1; i < 60; ++i) {
    opcodes += "]\x94"s;
  }
  for (int i = 59; i > 0; --i) {
    opcodes += "h"s + static_cast<char>(i - 1) + "a0"s;
  }
  EXPECT_NE(check(opcodes), "");
  EXPECT_NE(check("]\x94\x94h\0a"s), "") << "kept twice";
  EXPECT_NE(check("]\x94h\0a"s), "") << "a list that holds itself";
}

TEST(PickleLimitsTest, ReadingTheSameValueAgainCounts) {
  const std::string of_class = "X\1\0\0\0mX\1\0\0\0C\x93\x94"s;
  const std::string list = "](" + times("K\1", 1000) + "e\x94"s;
  const std::string again = "h\0h\1\x85R0"s;
  EXPECT_EQ(check(of_class + list + times(again, 5) + "0"), "");
  EXPECT_NE(check(of_class + list + times(again, 100) + "0"), "") << "arguments";
  EXPECT_NE(check(of_class + list + "0)R" + times("h\1b"s, 100)), "") << "states";
}

TEST(PickleLimitsTest, TheStackIsMemory) {
  EXPECT_EQ(check("(" + times("N", 5000) + "t"), "");
  EXPECT_NE(check("(" + times("N", 50'000) + "t"), "");
  EXPECT_NE(check(times("(", 100'000) + times("1", 100'000) + "N"), "");
}

TEST(PickleLimitsTest, OnlyTextsName) {
  EXPECT_EQ(check("X\1\0\0\0mX\1\0\0\0C\x93"s), "");
  EXPECT_NE(check("X\1\0\0\0m\x8a\4step\x93"s), "") << "a number that looks like a text";
  EXPECT_NE(check("C\1mX\1\0\0\0C\x93"s), "") << "bytes";
  EXPECT_NE(check("X\1\0\0\0mX\1\0\0\0C\x93\x94h\0\x93"s), "") << "a class";
}

std::string form(const std::string& opcodes) {
  const PickleReport report = check_pickle("\x80\x04" + opcodes + ".", kLimits);
  EXPECT_EQ(report.problem, "") << opcodes;
  const char* const names[] = {"plain", "call of ", "other"};
  return names[static_cast<int>(report.form)] + report.function;
}

std::string name(const std::string& module, const std::string& name) {
  return "\x8c" + std::string(1, static_cast<char>(module.size())) + module + "\x8c" +
         std::string(1, static_cast<char>(name.size())) + name + "\x93";
}

TEST(PickleLimitsTest, OnlyPlainCallsAreCalls) {
  const std::string torch = "torch.distributed.rpc.internal";
  const std::string udf = name(torch, "PythonUDF") + "\x94";
  const std::string function = name("m", "f") + "\x94";
  const std::string tensor = name("builtins", "getattr") + name(torch, "_InternalRPCPickler") +
                             "X\x10\0\0\0_tensor_receiver"s + "\x86RK\0\x85R"s;
  EXPECT_EQ(form("](K\1" + tensor + "e"), "plain");
  EXPECT_EQ(form(udf + function + "K\1\x85}\x87\x81"), "call of m:f");
  EXPECT_EQ(form(udf + function + tensor + "\x85}\x87\x81"), "call of m:f");
  EXPECT_EQ(form(udf + function + "h\1\x85}\x87\x81"), "other") << "the function as an argument";
  EXPECT_EQ(form(udf + function + "h\1)R\x85}\x87\x81"), "other") << "the function called while it is unpickled";
  EXPECT_EQ(form(udf + function + "h\0\x85}\x87\x81"s), "other");
  EXPECT_EQ(form(udf + function + "]h\1a\x85}\x87\x81"), "other") << "in a list";
  EXPECT_EQ(form(udf + function + "]\x85}\x87R"), "other");
  EXPECT_EQ(form(udf + name("m", "C") + ")R}K\1\x85\x87\x81"), "other");
  EXPECT_EQ(form(udf + function + "]}\x87\x81\x85"), "other") << "a call in a tuple";
  EXPECT_EQ(form(function), "other");
  EXPECT_EQ(form(name("m", "f") + ")R0N"), "other") << "a call of which nothing is left";
  EXPECT_EQ(form(name("m", "f") + "0N"), "other") << "pickle would import m";
  EXPECT_EQ(form(udf + name("n", "f") + "0" + name("m", "f") + ")}\x87\x81"), "other");
  EXPECT_EQ(form(udf + name("m", "f") + ")R0" + name("m", "g") + ")}\x87\x81"), "other");
}

TEST(PickleLimitsTest, NoPrefixOfAPickleHarmsTheCheck) {
  const std::string pickle = "\x80\x04\x95\0\0\0\0\0\0\0\0}\x94(X\1\0\0\0a\x94K\1X\1\0\0\0b](K\1K\2e\x8a\1\1Nu."s;
  for (size_t size = 0; size < pickle.size(); ++size) {
    (void)check_pickle(std::string_view(pickle).substr(0, size), kLimits);
  }
  for (size_t at = 2; at < pickle.size(); ++at) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string mutant = pickle;
      mutant[at] = static_cast<char>(byte);
      (void)check_pickle(mutant, kLimits);
    }
  }
}

}  // namespace
}  // namespace rpc_backends
