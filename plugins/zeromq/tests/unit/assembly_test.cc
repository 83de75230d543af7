// Large messages are put together from pieces, which arrive in any order and may be false.
#include "assembly.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "parts.h"

namespace rpc_backends::zeromq {
namespace {

using wire::kLeastPiece;
using wire::PieceHead;

constexpr uint64_t kMaxMessage = uint64_t{1} << 20;

class AssemblyTest : public testing::Test {
 protected:
  // Adds a piece of these bytes. Returns the message if it is complete.
  std::optional<Parts> add(const PieceHead& head, const std::vector<uint64_t>& sizes, const std::string& bytes) {
    size_t at = 0;
    for (const Part& place : assembly.begin(head, sizes)) {
      std::memcpy(const_cast<void*>(place.data), bytes.data() + at, place.size);
      at += place.size;
    }
    EXPECT_EQ(at, bytes.size());
    return assembly.finish(head.message);
  }

  void expect_bad(const PieceHead& head, const std::vector<uint64_t>& sizes, const std::string& why) {
    try {
      assembly.begin(head, sizes);
      ADD_FAILURE() << "the piece was taken";
    } catch (const BadPiece& error) {
      EXPECT_EQ(error.what(), why);
    }
  }

  Assembly assembly{kMaxMessage};
};

TEST_F(AssemblyTest, PiecesMakeTheirMessageInAnyOrder) {
  const std::string a(kLeastPiece, 'a'), b(kLeastPiece, 'b'), c(kLeastPiece, 'c');
  const uint64_t total = 3 * kLeastPiece + 1;
  // The parts: a and half of b, nothing, the rest and "d".
  const uint64_t half = kLeastPiece / 2, first = kLeastPiece + half, last = kLeastPiece + half + 1;
  EXPECT_FALSE(add({7, total, 3, 2, last - 1, 1}, {last}, "d"));
  EXPECT_FALSE(add({7, total, 3, 0, 0, kLeastPiece}, {first}, a));
  EXPECT_FALSE(add({7, total, 3, 2, half, kLeastPiece}, {last}, c));
  const auto message = add({7, total, 3, 0, kLeastPiece, kLeastPiece}, {first, 0, last}, b);
  ASSERT_TRUE(message);
  ASSERT_EQ(message->size(), 3U);
  EXPECT_EQ(bytes_in((*message)[0]), a + b.substr(0, half));
  EXPECT_EQ(bytes_in((*message)[1]), "");
  EXPECT_EQ(bytes_in((*message)[2]), b.substr(half) + c + "d");
}

TEST_F(AssemblyTest, AMessageIsCompleteOnlyWhenAllItsPiecesAreFilled) {
  const uint64_t total = 2 * kLeastPiece;
  const PieceHead first{0, total, 1, 0, 0, kLeastPiece}, second{0, total, 1, 0, kLeastPiece, kLeastPiece};
  assembly.begin(first, {total});
  assembly.begin(second, {total});
  EXPECT_FALSE(assembly.finish(0));
  EXPECT_TRUE(assembly.finish(0));
}

TEST_F(AssemblyTest, PiecesWithFalseNumbersAreRefused) {
  const uint64_t size = 2 * kLeastPiece;
  expect_bad({0, size, 1, 0, 0, size}, {}, "a piece has parts that its message has not");
  expect_bad({0, size, 1, 1, 0, size}, {size}, "a piece has parts that its message has not");
  expect_bad({0, size, 1, 0, 0, size}, {size, 0}, "a piece has parts that its message has not");
  expect_bad({0, size, 1, 0, 0, size + 1}, {size}, "a piece has parts that its message has not");
  expect_bad({0, size, 1 << 20, 0, 0, size}, {size}, "a piece has parts that its message has not");
  expect_bad({0, size, 1, 0, size, 1}, {size}, "a piece begins behind its part");
  expect_bad({0, size, 1, 0, UINT64_MAX, 1}, {size}, "a piece begins behind its part");
  expect_bad({0, size, 1, 0, 1, size}, {size}, "the sizes of a piece do not fit together");
  expect_bad({0, size, 2, 0, 0, size}, {size, 1}, "the sizes of a piece do not fit together");
  expect_bad({0, size, 2, 0, 0, kLeastPiece}, {size, size}, "the sizes of a piece do not fit together");
  expect_bad({0, size, 1, 0, 0, size}, {UINT64_MAX}, "the sizes of a piece do not fit together");
  expect_bad({0, size, 1, 0, 0, kLeastPiece - 1}, {size}, "a piece is too short");
  expect_bad({0, kMaxMessage + 1, 1, 0, 0, size}, {kMaxMessage + 1}, "a message is larger than the 1048576-byte limit");
}

TEST_F(AssemblyTest, PiecesThatDoNotFitToTheOthersAreRefused) {
  const uint64_t size = 4 * kLeastPiece;
  EXPECT_FALSE(add({0, size, 2, 0, kLeastPiece, kLeastPiece}, {size - 5}, std::string(kLeastPiece, 'x')));
  expect_bad({0, size + 1, 2, 0, 0, kLeastPiece}, {size - 5}, "a piece differs from the others of its message");
  expect_bad({0, size, 3, 0, 0, kLeastPiece}, {size - 5}, "a piece differs from the others of its message");
  expect_bad({0, size, 2, 0, 0, kLeastPiece}, {size - 6}, "a piece differs from the others of its message");
  expect_bad({0, size, 2, 1, 0, 6}, {6}, "the parts of a message are larger than the message");
  for (const uint64_t offset : {uint64_t{1}, kLeastPiece, 2 * kLeastPiece - 1}) {
    expect_bad({0, size, 2, 0, offset, kLeastPiece}, {size - 5}, "a piece came twice");
  }
}

TEST_F(AssemblyTest, AMessageThatClaimsMoreThanItsPartsIsRefused) {
  assembly.begin({0, kMaxMessage, 1, 0, 0, 5}, {5});
  EXPECT_THROW(assembly.finish(0), BadPiece);
}

TEST_F(AssemblyTest, UnfinishedMessagesAreLimited) {
  for (uint64_t number = 0; number <= wire::kMaxLanes; ++number) {
    assembly.begin({number, kMaxMessage, 1, 0, 0, kLeastPiece}, {kMaxMessage});
  }
  expect_bad({99, kMaxMessage, 1, 0, 0, kLeastPiece}, {kMaxMessage}, "too many messages are unfinished");
}

}  // namespace
}  // namespace rpc_backends::zeromq
