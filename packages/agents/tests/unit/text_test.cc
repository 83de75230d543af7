// Texts of peers.
#include "base/text.h"

#include <gtest/gtest.h>

#include <string>

namespace rpc_backends {
namespace {

TEST(ValidUtf8, ATextInUtf8StaysAsItIs) {
  for (const std::string text :
       {"", "a", "\x7f", "\xc2\x80 \xdf\xbf", "\xe0\xa0\x80 \xed\x9f\xbf \xee\x80\x80 \xef\xbf\xbf",
        "\xf0\x90\x80\x80 \xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(valid_utf8(text), text);
  }
  EXPECT_EQ(valid_utf8(std::string(3, '\0')), std::string(3, '\0'));
}

TEST(ValidUtf8, EachByteThatIsNoPartOfACharacterIsEscaped) {
  EXPECT_EQ(valid_utf8("a\x80z"), "a\\x80z");                                 // follows no first byte
  EXPECT_EQ(valid_utf8("\xe2\x82"), "\\xe2\\x82");                            // cut
  EXPECT_EQ(valid_utf8("\xe2\x82z\xe2\x82\xac"), "\\xe2\\x82z\xe2\x82\xac");  // cut by a letter
  EXPECT_EQ(valid_utf8("\xed\xb2\x80"), "\\xed\\xb2\\x80");                   // a surrogate
  EXPECT_EQ(valid_utf8("\xc0\xaf \xc1\xbf"), "\\xc0\\xaf \\xc1\\xbf");        // longer than needed
  EXPECT_EQ(valid_utf8("\xe0\x9f\xbf"), "\\xe0\\x9f\\xbf");
  EXPECT_EQ(valid_utf8("\xf0\x8f\xbf\xbf"), "\\xf0\\x8f\\xbf\\xbf");
  EXPECT_EQ(valid_utf8("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // above the last character
  EXPECT_EQ(valid_utf8("\xf5\xff\xfe"), "\\xf5\\xff\\xfe");
}

}  // namespace
}  // namespace rpc_backends
