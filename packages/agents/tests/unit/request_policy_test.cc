// What a policy permits, from the bytes of requests.
#include "agent/request_policy.h"

#include <gtest/gtest.h>

#include <string>

#include "base/text.h"
#include "rpc_backends_agents/interceptor.h"

namespace rpc_backends {
namespace {

using namespace std::string_literals;

std::string text(const std::string& value) {
  return "\x8c" + std::string(1, static_cast<char>(value.size())) + value + "\x94";
}

std::string global(const std::string& module, const std::string& name) {
  return text(module) + text(name) + "\x93\x94";
}

// A request that calls a function without arguments, as Python writes it.
std::string call(const std::string& module, const std::string& name) {
  const std::string opcodes =
      global("torch.distributed.rpc.internal", "PythonUDF") + global(module, name) + ")}\x94\x87\x94\x81\x94.";
  return "\0\x80\x04\x95"s + static_cast<char>(opcodes.size()) + std::string(7, '\0') + opcodes;
}

// The same of a method of a class.
std::string call_of_attribute(const std::string& module, const std::string& owner, const std::string& name) {
  const std::string opcodes = global("torch.distributed.rpc.internal", "PythonUDF") + global("builtins", "getattr") +
                              global(module, owner) + text(name) + "\x86\x94R\x94)}\x94\x87\x94\x81\x94.";
  const auto size = static_cast<uint16_t>(opcodes.size());
  return "\0\x80\x04\x95"s + static_cast<char>(size & 0xffU) + static_cast<char>(size >> 8U) + std::string(6, '\0') +
         opcodes;
}

std::string in_autograd(const std::string& payload, const std::string& type) {
  const std::string pickle = "\x80\x02(" + type + "K\x03K\x04K\x01"s + "ctorch.jit._pickle\nrestore_type_tag\nq\0"s +
                             "}(uX\x0e\0\0\0Dict[str, str]q\x01\x86Rq\x02t."s;
  return payload + pickle + std::string(7, '\0') + static_cast<char>(pickle.size());
}

class RequestPolicyTest : public testing::Test {
 protected:
  static RequestPolicy::Rule rule() {
    RequestPolicy::Rule listed;
    listed.peers = {"trainer*"};
    listed.functions = {"train:step"};
    listed.autograd = true;
    return listed;
  }
  RequestPolicy policy_{{rule()}, "ps", true, false, -1};
};

TEST_F(RequestPolicyTest, OnlyListedFunctionsOfListedPeersAreServed) {
  EXPECT_EQ(policy_.refusal("trainer0", kPythonCall, call("train", "step")), "");
  EXPECT_NE(policy_.refusal("other", kPythonCall, call("train", "step")), "");
  EXPECT_EQ(
      policy_.refusal("trainer0", kPythonCall, call("train", "stop")),
      "worker 'ps' refuses a request of 'trainer0': its guard policy does not list 'train:stop' in `functions` of "
      "a rule for 'trainer0'");
  EXPECT_NE(policy_.refusal("trainer0", kPythonCall, call("train", "step2")), "");
  EXPECT_NE(policy_.refusal("trainer0", kPythonCall, ""), "");
  EXPECT_EQ(policy_.refused(), 4U);
}

TEST_F(RequestPolicyTest, RefusalsAreValidUtf8) {
  const auto refusal = [&](const std::string& name) {
    return policy_.refusal("trainer0", kPythonCall, call("m", name));
  };
  EXPECT_NE(refusal("get\xed\xb2\x80pid").find("'m:get\\xed\\xb2\\x80pid'"), std::string::npos);
  EXPECT_NE(refusal("\xc3\xa9").find("'m:\xc3\xa9'"), std::string::npos);
  std::string name;
  for (int i = 0; i < 127; ++i) {
    name += "\xc3\xa9";
  }
  // As long as a name may be, and a byte.
  const std::string cut =
      policy_.refusal("trainer0", kPythonCall, call_of_attribute("aa", std::string(255, 'b'), name));
  EXPECT_NE(cut.find("bbb.\xc3\xa9"), std::string::npos);
  EXPECT_NE(cut.find("\\xc3'"), std::string::npos);
  EXPECT_EQ(valid_utf8(cut), cut);
}

TEST_F(RequestPolicyTest, RefusalsNameTheEntryOfThePolicy) {
  const auto asked = [&](const std::string& request) { return policy_.refusal("trainer0", kPythonCall, request); };
  EXPECT_NE(asked(call("a.b", "C.d")).find("does not list 'a.b:C.d' in"), std::string::npos);
  EXPECT_NE(asked(call_of_attribute("a.b", "C", "d")).find("does not list 'a.b:C.d' in"), std::string::npos);
  EXPECT_NE(asked(call_of_attribute("torch._C", "_VariableFunctionsClass", "add")).find("does not list 'torch:add' in"),
            std::string::npos);
}

TEST_F(RequestPolicyTest, WrappersAreReadInTorchsFormOnly) {
  const std::string inner = call("train", "step");
  EXPECT_EQ(policy_.refusal("trainer0", kForwardAutogradRequest, in_autograd(inner, "M\x02\x01"s)), "");
  EXPECT_NE(policy_.refusal("trainer0", kForwardAutogradRequest, in_autograd(call("os", "system"), "M\x02\x01"s)), "");
  // Torch would take 0x102 from this, and a reader of the first number 0x106.
  const std::string changed = in_autograd(inner, "M\x06\x01"s + "0M\x02\x01"s);
  EXPECT_NE(policy_.refusal("trainer0", kForwardAutogradRequest, changed).find("another form than torch's"),
            std::string::npos);
  const std::string twice = in_autograd(in_autograd(inner, "M\x02\x01"s), "M\x0f\x01"s);
  EXPECT_NE(policy_.refusal("trainer0", kForwardAutogradRequest, twice), "");
  EXPECT_NE(policy_.refusal("trainer0", kRunWithProfilingRequest, in_autograd(inner, "M\x02\x01"s)), "");
}

TEST_F(RequestPolicyTest, EntriesOfTheLogAreKeptForAReader) {
  auto& entries = AuditEntries::of_process();
  (void)policy_.refusal("trainer0", kPythonCall, call("os", "system"));
  EXPECT_TRUE(entries.take().empty()) << "nobody reads them";
  entries.keep();
  for (int i = 0; i < 1005; ++i) {
    (void)policy_.refusal("trainer0", kPythonCall, call("os", "system"));
  }
  const auto taken = entries.take();
  ASSERT_EQ(taken.size(), 1001U);
  EXPECT_NE(taken.front().find("os:system"), std::string::npos);
  EXPECT_NE(taken.back().find("\"count\":5"), std::string::npos);
  EXPECT_TRUE(entries.take().empty());
}

TEST_F(RequestPolicyTest, APolicyThatOnlyWarnsLeavesCallsOfPythonToPython) {
  auto& entries = AuditEntries::of_process();
  entries.keep();
  RequestPolicy warning{{rule()}, "ps", false, false, -1};
  EXPECT_EQ(warning.refusal("trainer0", kPythonCall, call("os", "system")), "");
  EXPECT_TRUE(entries.take().empty()) << "the log would have the call twice";
  EXPECT_EQ(warning.refusal("trainer0", kPythonRRefFetchCall, ""), "");
  EXPECT_EQ(entries.take().size(), 1U);
}

}  // namespace
}  // namespace rpc_backends
