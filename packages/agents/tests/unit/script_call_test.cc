// What a script call runs is read where torch reads it, and a pickle in another form is not believed.
#include "inspect/script_call.h"

#include <gtest/gtest.h>

#include <string>

namespace rpc_backends {
namespace {

using namespace std::string_literals;

std::string text(const std::string& value) {
  return "X"s + static_cast<char>(value.size()) + "\0\0\0"s + value + "q\0"s;
}

const std::string kStart = "\x80\x02("s;
const std::string kAdd = text("aten::add.Tensor(Tensor self) -> Tensor");
const std::string kSave = text("aten::save(t item, str filename) -> ()");
const std::string kName = text("torch.ops.aten.add");
const std::string kId = "K\1K\2\x86q\1"s;

std::string name_in(const std::string& pickle, bool is_remote = false) {
  const auto callee = read_script_call(pickle, is_remote);
  return callee ? callee->name : "";
}

TEST(ScriptCallTest, AnOperatorIsNamedByItsSchema) {
  EXPECT_EQ(name_in(kStart + "K\1" + kAdd + kName + "tq\2."s), "aten::add.Tensor");
  EXPECT_EQ(name_in(kStart + kSave + kName + "t."), "aten::save") << "torch does not read the name beside it";
  EXPECT_EQ(name_in(kStart + kAdd + kSave + kName + "t."), "aten::save");
}

TEST(ScriptCallTest, ARemoteCallEndsWithTwoIds) {
  EXPECT_EQ(name_in(kStart + kAdd + kName + kId + kId + "tq\2."s, true), "aten::add.Tensor");
  EXPECT_EQ(name_in(kStart + kAdd + kName + kId + "tq\2."s, true), "");
  EXPECT_EQ(name_in(kStart + kAdd + kName + "tq\2."s, true), "");
  EXPECT_EQ(name_in("\x80\x02" + kAdd + kName + kId + kId + "\x87."s, true), "") << "a tuple without the schema";
}

TEST(ScriptCallTest, AFunctionOfTorchScriptIsNamed) {
  const auto callee = read_script_call(kStart + "K\1\x89" + text("__torch__.f") + "t.", false);
  ASSERT_TRUE(callee);
  EXPECT_FALSE(callee->is_operator);
  EXPECT_EQ(callee->name, "__torch__.f");
  EXPECT_EQ(name_in(kStart + text("x") + text("__torch__.f") + "t."), "") << "torch's has a flag before the name";
}

TEST(ScriptCallTest, AnotherEndIsNotBelieved) {
  const std::string call = kAdd + kName + "t";
  EXPECT_EQ(name_in(kStart + kSave + kName + "t." + kStart + call + "."), "") << "torch ignores what follows the end";
  EXPECT_EQ(name_in(kStart + call), "") << "no end";
  EXPECT_EQ(name_in(kStart + kAdd + "K\1" + kName + "t."), "") << "a value between schema and name";
  EXPECT_EQ(name_in("\x80\x02" + kAdd + kName + "\x86."), "aten::add.Tensor");
  EXPECT_EQ(name_in("\x80\x02" + kAdd + kName + "\x85."), "") << "another tuple";
  EXPECT_EQ(name_in(kStart + kSave + kName + "t" + "(" + call + "\x86."), "");
  EXPECT_EQ(name_in(""), "");
}

TEST(ScriptCallTest, ClassesInArgumentsAreNotBelieved) {
  EXPECT_EQ(name_in(kStart + "c__torch__\nC\n)\x81" + kAdd + kName + "t."), "");
  EXPECT_EQ(name_in(kStart + "ctorch.jit._pickle\nbuild_intlist\n](K\1e\x85R" + kAdd + kName + "t."),
            "aten::add.Tensor");
}

}  // namespace
}  // namespace rpc_backends
