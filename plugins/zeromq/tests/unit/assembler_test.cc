// Messages as ZeroMQ messages and back, and what a peer may send instead.
#include "assembler.h"

#include <gtest/gtest.h>

#include <functional>

#include "memory_libzmq.h"
#include "packed.h"
#include "parts.h"
#include "route.h"
#include "wire.h"

namespace rpc_backends::zeromq {
namespace {

using Kind = Assembler::Outcome::Kind;

constexpr uint64_t kMaxMessage = uint64_t{64} << 20;

class AssemblerTest : public testing::Test {
 protected:
  AssemblerTest() { wire.frames.clear(); }

  void send(Parts parts, size_t largest_frame = wire::kLargestFrame) {
    ASSERT_TRUE(Packed(std::move(parts), kMaxMessage, largest_frame).send(socket, ""));
  }

  // Reads the next ZeroMQ message.
  Assembler::Outcome take() {
    Frame first;
    EXPECT_TRUE(socket.receive(first));
    return assembler.take(std::move(first), socket);
  }

  // Reads until a message is complete.
  Parts take_message() {
    for (;;) {
      Assembler::Outcome outcome = take();
      if (outcome.kind == Kind::kMessage) {
        return std::move(outcome.parts);
      }
      if (outcome.kind == Kind::kPiece) {
        if (std::optional<Parts> parts = outcome.piece->put()) {
          return std::move(*parts);
        }
      } else if (outcome.kind != Kind::kNothing) {
        ADD_FAILURE() << outcome.text;
        return {};
      }
    }
  }

  void expect_malformed(const std::string& text) {
    const Assembler::Outcome outcome = take();
    EXPECT_EQ(outcome.kind, Kind::kMalformed);
    EXPECT_EQ(outcome.text, text);
    EXPECT_FALSE(assembler.is_in_message());
  }

  // The head of a message with one part of `size` bytes at `place`.
  static std::string head_with(uint64_t size, wire::Place place) {
    wire::Header header;
    header.kind = static_cast<uint8_t>(wire::Kind::kMessage);
    header.count = 1;
    const uint64_t field = size | static_cast<uint64_t>(place) << wire::kPlaceShift;
    std::string head(reinterpret_cast<const char*>(&header), sizeof header);
    head.append(reinterpret_cast<const char*>(&field), sizeof field);
    return head;
  }

  Context context{1};
  Socket socket{context, socket_type::kDealer};
  Assembler assembler{kMaxMessage};
};

TEST_F(AssemblerTest, ReturnsPartsOfEverySizeUnchanged) {
  for (const size_t largest_frame : {size_t{1000}, wire::kLargestFrame, wire::kLargestPlainFrame}) {
    Parts parts;
    for (const size_t size :
         {size_t{0}, size_t{1}, wire::kMaxInHead, wire::kMaxInHead + 1, wire::kLargestFrame, wire::kLargestFrame + 1,
          wire::kMaxInMessage, wire::kMaxInMessage + 1, 2 * wire::kMaxInMessage + 7}) {
      parts.push_back(part_with(std::string(size, static_cast<char>('a' + parts.size()))));
    }
    send(parts, largest_frame);
    const Parts same = take_message();
    ASSERT_EQ(same.size(), parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      EXPECT_TRUE(bytes_in(same[i]) == bytes_in(parts[i])) << "part " << i;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(same[i].data) % 8, 0U) << "part " << i;
    }
    EXPECT_TRUE(wire.frames.empty());
  }
}

TEST_F(AssemblerTest, ReturnsAMessageOfNoPartsAndOfManyParts) {
  send({});
  EXPECT_TRUE(take_message().empty());
  send(Parts(wire::kMaxParts, part_with("x")));
  EXPECT_EQ(take_message().size(), wire::kMaxParts);
}

TEST_F(AssemblerTest, PiecesMayBeCopiedInAnyOrder) {
  send(parts_with({std::string(3 * wire::kMaxInMessage, 'p'), "small"}));
  EXPECT_EQ(take().kind, Kind::kNothing);
  std::vector<Piece> pieces;
  while (assembler.is_in_message()) {
    Assembler::Outcome outcome = take();
    ASSERT_EQ(outcome.kind, Kind::kPiece);
    pieces.push_back(std::move(*outcome.piece));
  }
  ASSERT_EQ(pieces.size(), 3U);
  EXPECT_FALSE(pieces[2].put());
  EXPECT_FALSE(pieces[0].put());
  const std::optional<Parts> parts = pieces[1].put();
  ASSERT_TRUE(parts);
  EXPECT_TRUE(bytes_in((*parts)[0]) == std::string(3 * wire::kMaxInMessage, 'p'));
  EXPECT_EQ(bytes_in((*parts)[1]), "small");
}

TEST_F(AssemblerTest, GivesTheReasonOfARefusal) {
  ASSERT_TRUE(Packed::refusal(std::string(2 * wire::kLongestReason, 'r')).send(socket, ""));
  const Assembler::Outcome outcome = take();
  EXPECT_EQ(outcome.kind, Kind::kRefusal);
  EXPECT_EQ(outcome.text, std::string(wire::kLongestReason, 'r'));
}

TEST_F(AssemblerTest, RefusesAHeadThatIsCutAnywhere) {
  send(parts_with({"one", "two"}));
  const std::string head = wire.frames[0].bytes;
  for (size_t size = 0; size < head.size(); ++size) {
    wire.frames = {{head.substr(0, size), false}};
    EXPECT_EQ(take().kind, Kind::kMalformed) << size;
  }
}

TEST_F(AssemblerTest, RefusesAnotherVersionOrKind) {
  std::string head = head_with(0, wire::Place::kHead);
  for (const size_t place : {0, 1}) {
    std::string other = head;
    other[place] = 9;
    wire.frames = {{other, false}};
    expect_malformed("the data is not a message of this protocol version");
  }
}

TEST_F(AssemblerTest, ReadsAllFramesOfAMalformedMessage) {
  wire.frames = {{"garbage", true}, {"more", true}, {"rest", false}};
  EXPECT_EQ(take().kind, Kind::kMalformed);
  EXPECT_TRUE(wire.frames.empty());
  send(parts_with({"next"}));
  EXPECT_EQ(bytes_in(take_message()[0]), "next");
}

TEST_F(AssemblerTest, RefusesMissingAndAdditionalFrames) {
  send(parts_with({std::string(wire::kMaxInHead + 1, 'f')}));
  const auto frames = wire.frames;
  ASSERT_EQ(frames.size(), 2U);
  wire.frames = {{frames[0].bytes, false}};
  expect_malformed("a frame of a message is missing or does not have its declared size");
  wire.frames = {frames[0], {frames[1].bytes.substr(1), false}};
  expect_malformed("a frame of a message is missing or does not have its declared size");
  wire.frames = {frames[0], {frames[1].bytes, true}, {"more", false}};
  expect_malformed("a message is longer than its declared size");
}

TEST_F(AssemblerTest, RefusesSizesBeyondTheLimitWithoutTheirMemory) {
  for (const uint64_t size : {kMaxMessage + 1, wire::kSizeMask}) {
    for (const wire::Place place : {wire::Place::kHead, wire::Place::kFrame, wire::Place::kPieces}) {
      wire.frames = {{head_with(size, place), false}};
      expect_malformed("a message is larger than the " + std::to_string(kMaxMessage) + "-byte limit");
    }
  }
}

TEST_F(AssemblerTest, RefusesAnEmptyPartInPiecesAndAnUnknownPlace) {
  for (const std::string& head : {head_with(0, wire::Place::kPieces), head_with(1, static_cast<wire::Place>(3))}) {
    wire.frames = {{head, false}};
    expect_malformed("a part of a message has an invalid location");
  }
}

TEST_F(AssemblerTest, RefusesPiecesThatAreEmptyOrTooLong) {
  for (const size_t size : {0, 11}) {
    wire.frames = {{head_with(10, wire::Place::kPieces), false}, {std::string(size, 'p'), false}};
    EXPECT_EQ(take().kind, Kind::kNothing);
    EXPECT_TRUE(assembler.is_in_message());
    expect_malformed("a piece of a message is of a wrong size");
  }
}

TEST_F(AssemblerTest, RefusesMorePartsThanTheHeadHas) {
  std::string head = head_with(0, wire::Place::kHead);
  for (const uint32_t count : {uint32_t{2}, static_cast<uint32_t>(wire::kMaxParts + 1), UINT32_MAX}) {
    std::memcpy(head.data() + offsetof(wire::Header, count), &count, sizeof count);
    wire.frames = {{head, false}};
    expect_malformed("a message has too many parts");
  }
}

TEST(Packed, RefusesAMessageThatIsTooLarge) {
  EXPECT_THROW(Packed(parts_with({std::string(11, 'x')}), 10), TransportError);
  EXPECT_THROW(Packed(Parts(wire::kMaxParts + 1), kMaxMessage), TransportError);
}

TEST(Packed, HasBegunOnceItsHeadIsSent) {
  Context context(1);
  Socket socket(context, socket_type::kDealer);
  Packed packed(parts_with({"x"}), kMaxMessage);
  EXPECT_FALSE(packed.begun());
  EXPECT_TRUE(packed.send(socket, ""));
  EXPECT_TRUE(packed.begun());
}

TEST(Route, IsUniqueOrderedByAgeAndReadAsItWasMade) {
  const Route first = Route::make(7), second = Route::make(7);
  EXPECT_NE(first.text, second.text);
  EXPECT_LT(first.time, second.time);
  const auto same = Route::parse(first.text.data(), first.text.size());
  ASSERT_TRUE(same);
  EXPECT_EQ(same->worker, 7);
  EXPECT_EQ(same->time, first.time);
}

TEST(Route, RefusesOtherNamesAndNegativeWorkers) {
  std::string text = Route::make(7).text;
  EXPECT_FALSE(Route::parse(text.data(), text.size() - 1));
  text[0] = 'X';
  EXPECT_FALSE(Route::parse(text.data(), text.size()));
  const std::string negative = Route::make(-1).text;
  EXPECT_FALSE(Route::parse(negative.data(), negative.size()));
}

}  // namespace
}  // namespace rpc_backends::zeromq
