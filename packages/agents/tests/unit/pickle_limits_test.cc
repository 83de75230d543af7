// What would harm a process is found in a pickle without executing it.
#include "inspect/pickle_limits.h"

#include <gtest/gtest.h>

#include <string>

namespace rpc_backends {
namespace {

using namespace std::string_literals;

constexpr PickleLimits kLimits{50, 1 << 20};

std::string check(const std::string& opcodes) {
  return check_pickle("\x80\x04" + opcodes + ".", kLimits);
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
  EXPECT_NE(check_pickle("\x80\x04N.N."s, kLimits), "");
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
