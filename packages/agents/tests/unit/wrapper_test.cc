// Wrappers are read in the form that torch writes, and in no other.
#include "inspect/wrapper.h"

#include <gtest/gtest.h>

#include <string>

namespace rpc_backends {
namespace {

using namespace std::string_literals;

const std::string kTag = "ctorch.jit._pickle\nrestore_type_tag\nq\0"s;
// As torch 2.13 writes them around a payload "X" of type 258.
const std::string kAutograd =
    "\x80\x02(M\x02\x01K\x03K\x04K\x01"s + kTag + "}(uX\x0e\0\0\0Dict[str, str]q\x01\x86Rq\x02t."s;
const std::string kLongIds = "\x80\x02(M\x02\x01\x8a\x08\x05\0\0\0\0\0\x01\0J\x06\0\0\x01K\x01"s + kTag +
                             "}(uX\x0e\0\0\0Dict[str, str]q\x01\x86Rq\x02t."s;
const std::string kDevices = "\x80\x02(M\x02\x01K\x01K\x02K\x01"s + kTag +
                             "}(X\x03\0\0\0cpuq\x01X\x06\0\0\0cuda:0q\x02h\x02X\x06\0\0\0cuda:1q\x03u"s +
                             "X\x0e\0\0\0Dict[str, str]q\x04\x86Rq\x05t."s;
const std::string kProfiling =
    "\x80\x02M\x02\x01"s + kTag + "](K\x01\x88\x89"s + "eX\x09\0\0\0List[Any]q\x01\x86RK\0K\x01\x86\x87."s;

std::string around(const std::string& pickle) {
  return "X" + pickle + std::string(7, '\0') + static_cast<char>(pickle.size());
}

std::string replaced(std::string text, const std::string& old, const std::string& by) {
  return text.replace(text.find(old), old.size(), by);
}

TEST(WrapperTest, WhatTorchWritesIsRead) {
  for (const std::string& pickle : {kAutograd, kLongIds, kDevices}) {
    const std::string payload = around(pickle);
    const auto wrapper = read_autograd_wrapper(payload);
    ASSERT_TRUE(wrapper);
    EXPECT_EQ(wrapper->type, 258);
    EXPECT_EQ(wrapper->payload, "X");
    EXPECT_FALSE(read_profiling_wrapper(payload));
  }
  const std::string payload = around(kProfiling);
  const auto wrapper = read_profiling_wrapper(payload);
  ASSERT_TRUE(wrapper);
  EXPECT_EQ(wrapper->type, 258);
  EXPECT_EQ(wrapper->payload, "X");
  EXPECT_FALSE(read_autograd_wrapper(payload));
}

TEST(WrapperTest, OtherFormsOfTheSameValuesAreRefused) {
  const std::string type = "M\x02\x01"s;
  const std::string forms[] = {
      replaced(kAutograd, type,
               "K\x01"
               "0" +
                   type),                                            // another number, taken off again
      replaced(kAutograd, type, type + "q\0"s),                      // kept
      replaced(kAutograd, type, "\x8a\x02\x02\x01"s),                // a long number of two bytes
      replaced(kAutograd, type, "J\xff\xff\xff\xff"s),               // below 0
      replaced(kAutograd, type, "\x8a\x08\x02\x01\0\0\x01\0\0\0"s),  // 258 only in its last 32 bits
      replaced(kAutograd, "(" + type, "]0(" + type),                 // an empty list before
      replaced(kAutograd, "t.", "t0" + kAutograd.substr(2)),         // a second tuple
      replaced(kAutograd, "restore_type_tag", "build_intlist"),
      replaced(kAutograd, "q\x01\x86Rq\x02", "q\x01\x86Rq\x09"),
      replaced(kDevices, "h\x02", "h\x00"s),
      kAutograd + ".",
      replaced(kAutograd, "\x80\x02", "\x80\x03"),
  };
  for (const std::string& form : forms) {
    EXPECT_FALSE(read_autograd_wrapper(around(form))) << form;
  }
  EXPECT_FALSE(read_profiling_wrapper(around(replaced(kProfiling, "\x88", "N"))));
}

TEST(WrapperTest, NoOtherByteIsAccepted) {
  const std::string payload = around(kDevices);
  for (size_t at = 1; at < payload.size(); ++at) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string mutant = payload;
      mutant[at] = static_cast<char>(byte);
      const auto wrapper = read_autograd_wrapper(mutant);
      if (wrapper && mutant.compare(4, 4, payload, 4, 4) == 0) {
        EXPECT_EQ(wrapper->type, 258) << at;
      }
    }
    (void)read_autograd_wrapper(std::string_view(payload).substr(0, at));
    (void)read_autograd_wrapper(std::string_view(payload).substr(at));
    (void)read_profiling_wrapper(std::string_view(payload).substr(at));
  }
}

}  // namespace
}  // namespace rpc_backends
