#include "wire/frame.h"

#include <gtest/gtest.h>

#include <functional>

#include "parts.h"
#include "rpc_backends_agents/interceptor.h"

namespace rpc_backends {
namespace {

std::string written(const std::function<void(Writer&)>& write) {
  Writer out;
  write(out);
  return {out.bytes().begin(), out.bytes().end()};
}

std::string bytes_of(const Head& head) {
  return written([&](Writer& out) { head.write(out); });
}

Head read(const std::string& bytes) {
  const Part part = part_with(bytes);
  Reader in(part.data, part.size);
  return Head::read(in);
}

// The text of the BadFrame that `work` throws; fails the test if it throws none.
std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const BadFrame& error) {
    return error.what();
  }
  ADD_FAILURE() << "no BadFrame";
  return {};
}

Head some_head() {
  Head head;
  head.kind = FrameKind::kAnswer;
  head.payload_inline = true;
  head.type = 42;
  head.tensors = 3;
  head.storages = 2;
  head.context_size = 7;
  head.call = 1234567890123;
  head.payload_size = 11;
  head.description_size = 13;
  return head;
}

constexpr size_t kVersionPlace = 4, kKindPlace = 5, kFlagsPlace = 6;

TEST(Head, IsReadAsItWasWritten) {
  const Head head = some_head(), same = read(bytes_of(head));
  EXPECT_EQ(same.kind, head.kind);
  EXPECT_EQ(same.payload_inline, head.payload_inline);
  EXPECT_EQ(same.type, head.type);
  EXPECT_EQ(same.tensors, head.tensors);
  EXPECT_EQ(same.storages, head.storages);
  EXPECT_EQ(same.context_size, head.context_size);
  EXPECT_EQ(same.call, head.call);
  EXPECT_EQ(same.payload_size, head.payload_size);
  EXPECT_EQ(same.description_size, head.description_size);
  EXPECT_EQ(same.bytes_in_pieces, 0U);
}

TEST(Head, OfAMessageInPiecesHasSessionAndSize) {
  Head head = some_head();
  head.session = 77;
  head.bytes_in_pieces = 5 * kPieceBytes;
  const Head same = read(bytes_of(head));
  EXPECT_EQ(same.session, 77U);
  EXPECT_EQ(same.bytes_in_pieces, 5 * kPieceBytes);
}

TEST(Head, IsRefusedIfItEndsInTheMiddleOfAnyField) {
  Head head = some_head();
  head.bytes_in_pieces = 1;
  const std::string bytes = bytes_of(head);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(refusal([&] { read(bytes.substr(0, size)); }), "it ends in the middle of a field") << size;
  }
}

TEST(Head, WithOtherFirstBytesIsNoFrame) {
  std::string bytes = bytes_of(some_head());
  bytes[0] = 'X';
  EXPECT_EQ(refusal([&] { read(bytes); }), "it does not start with the bytes of a frame");
}

TEST(Head, OfAnotherVersionSaysWhichVersionsDiffer) {
  std::string bytes = bytes_of(some_head());
  bytes[kVersionPlace] = 9;
  const std::string text = refusal([&] { read(bytes); });
  EXPECT_NE(text.find("its version is 9, but this worker uses version 1"), std::string::npos) << text;
}

TEST(Head, WithAnUnknownKindOrFlagIsRefused) {
  std::string bytes = bytes_of(some_head());
  bytes[kKindPlace] = 0;
  EXPECT_EQ(refusal([&] { read(bytes); }), "its kind 0 is unknown");
  bytes[kKindPlace] = 1;
  bytes[kFlagsPlace] = 2;
  EXPECT_EQ(refusal([&] { read(bytes); }), "it has unknown flags");
}

TEST(Head, InPiecesWithoutBytesIsRefused) {
  Head head = some_head();
  head.bytes_in_pieces = 1;
  std::string bytes = bytes_of(head);
  bytes.replace(bytes.size() - 8, 8, 8, '\0');
  EXPECT_EQ(refusal([&] { read(bytes); }), "it is in pieces that have no bytes");
}

Contexts read_contexts(const std::string& bytes) {
  const Part part = part_with(bytes);
  return rpc_backends::read_contexts(Reader(part.data, part.size));
}

TEST(Contexts, AreReadAsTheyWereWritten) {
  const Contexts contexts{{"trace", std::string("\0\1\2", 3)}, {"quota", ""}};
  const std::string bytes = written([&](Writer& out) { write(contexts, out); });
  EXPECT_EQ(bytes.size(), size_of(contexts));
  const Contexts same = read_contexts(bytes);
  ASSERT_EQ(same.size(), 2U);
  EXPECT_EQ(same[0].name, "trace");
  EXPECT_EQ(same[0].bytes, std::string("\0\1\2", 3));
  EXPECT_EQ(same[1].name, "quota");
  EXPECT_EQ(same[1].bytes, "");
}

TEST(Contexts, AreRefusedIfTheyEndTooEarly) {
  const std::string bytes = written([](Writer& out) { write({{"trace", "bytes"}}, out); });
  for (size_t size = 1; size < bytes.size(); ++size) {
    EXPECT_EQ(refusal([&] { read_contexts(bytes.substr(0, size)); }), "it ends in the middle of a field") << size;
  }
}

TEST(Contexts, NeedNamesThatAreValidAndDiffer) {
  const std::string wrong = "the name of a context is not valid";
  EXPECT_EQ(refusal([] { read_contexts(written([](Writer& out) { write({{"", "x"}}, out); })); }), wrong);
  EXPECT_EQ(refusal([] { read_contexts(written([](Writer& out) { write({{"a", "x"}, {"a", "y"}}, out); })); }), wrong);
  const std::string longest(kMaxInterceptorName, 'n');
  EXPECT_EQ(read_contexts(written([&](Writer& out) { write({{longest, ""}}, out); })).size(), 1U);
  EXPECT_EQ(refusal([&] { read_contexts(written([&](Writer& out) { write({{longest + "n", ""}}, out); })); }), wrong);
}

PieceHead some_piece() {
  PieceHead head;
  head.kind = FrameKind::kAnswer;
  head.device_type = 1;
  head.device_index = 3;
  head.storage = 2;
  head.call = 99;
  head.session = 5;
  head.storage_size = kPieceBytes + 100;
  return head;
}

Parts piece(const PieceHead& head, size_t size) {
  return {part_with(written([&](Writer& out) { head.write(out); })), part_with(std::string(size, 'p'))};
}

TEST(PieceHead, IsReadAsItWasWritten) {
  PieceHead head = some_piece();
  head.offset = kPieceBytes;
  const Parts parts = piece(head, 100);
  ASSERT_TRUE(is_piece(parts));
  const PieceHead same = PieceHead::read(parts);
  EXPECT_EQ(same.kind, head.kind);
  EXPECT_EQ(same.device_type, head.device_type);
  EXPECT_EQ(same.device_index, head.device_index);
  EXPECT_EQ(same.storage, head.storage);
  EXPECT_EQ(same.call, head.call);
  EXPECT_EQ(same.session, head.session);
  EXPECT_EQ(same.storage_size, head.storage_size);
  EXPECT_EQ(same.offset, head.offset);
}

TEST(PieceHead, MustDescribeTheBytesThatCome) {
  const std::string wrong = "a piece has the wrong size or place";
  PieceHead head = some_piece();
  EXPECT_EQ(refusal([&] { PieceHead::read(piece(head, kPieceBytes - 1)); }), wrong);
  head.offset = 1;  // not a multiple of the size of a piece
  EXPECT_EQ(refusal([&] { PieceHead::read(piece(head, kPieceBytes)); }), wrong);
  head.offset = 2 * kPieceBytes;  // beyond the storage
  EXPECT_EQ(refusal([&] { PieceHead::read(piece(head, kPieceBytes)); }), wrong);
  head = some_piece();
  head.storage_size = kPieceBytes;  // would not have been sent in pieces
  EXPECT_EQ(refusal([&] { PieceHead::read(piece(head, kPieceBytes)); }), wrong);
  head.storage_size = UINT64_MAX;
  head.offset = UINT64_MAX / kPieceBytes * kPieceBytes;
  EXPECT_EQ(refusal([&] { PieceHead::read(piece(head, 1)); }), wrong);
}

TEST(PieceHead, ConsistsOfTwoParts) {
  Parts parts = piece(some_piece(), kPieceBytes);
  parts.push_back(part_with("more"));
  EXPECT_EQ(refusal([&] { PieceHead::read(parts); }), "a piece does not consist of its head and its bytes");
  EXPECT_EQ(refusal([] { PieceHead::read(parts_with({bytes_of(some_head())})); }), "it is not a piece");
}

TEST(PieceHead, IsToldFromOtherMessagesWithoutReadingBeyondThem) {
  EXPECT_FALSE(is_piece({}));
  EXPECT_FALSE(is_in_pieces({}));
  const std::string bytes = bytes_of(some_head());
  for (size_t size = 0; size <= bytes.size(); ++size) {
    EXPECT_FALSE(is_piece(parts_with({bytes.substr(0, size)}))) << size;
    EXPECT_FALSE(is_in_pieces(parts_with({bytes.substr(0, size)}))) << size;
  }
}

// A head that agrees with a message of two parts.
Head agreeing_head() {
  Head head;
  head.payload_size = 10;
  head.description_size = 5;
  return head;
}

const Parts& two_parts() {
  static const Parts parts = parts_with({std::string(60, 'h'), std::string(40, 'p')});
  return parts;
}

TEST(Limits, AMessageMayHaveExactlyItsLimit) {
  Limits limits;
  limits.message_bytes = 100;
  limits.check(agreeing_head(), two_parts());
  limits.message_bytes = 99;
  EXPECT_EQ(refusal([&] { limits.check(agreeing_head(), two_parts()); }),
            "it has 100 bytes, more than max_message_bytes of the receiving worker, 99");
}

TEST(Limits, PiecesCountAndDoNotOverflow) {
  Limits limits;
  limits.message_bytes = 1000;
  Head head = agreeing_head();
  head.bytes_in_pieces = 900;
  limits.check(head, two_parts());
  head.bytes_in_pieces = 901;
  EXPECT_NE(refusal([&] { limits.check(head, two_parts()); }).find("it has 1001 bytes"), std::string::npos);
  head.bytes_in_pieces = UINT64_MAX;
  EXPECT_NE(refusal([&] { limits.check(head, two_parts()); }).find("it has 2^64 bytes"), std::string::npos);
}

TEST(Limits, CountsThatAMessageCannotHaveAreRefused) {
  const Limits limits;
  Head head = agreeing_head();
  head.tensors = kMaxTensors + 1;
  EXPECT_NE(refusal([&] { limits.check(head, two_parts()); }).find("tensors; at most"), std::string::npos);
  head = agreeing_head();
  head.tensors = 1;
  head.storages = 4;
  EXPECT_EQ(refusal([&] { limits.check(head, two_parts()); }), "it claims 4 storages; at most 3 are allowed");
  head = agreeing_head();
  head.kind = FrameKind::kAnswer;
  head.context_size = 1;
  EXPECT_EQ(refusal([&] { limits.check(head, two_parts()); }), "it claims 1 bytes of context; at most 0 are allowed");
  head = agreeing_head();
  head.payload_size = UINT64_MAX;
  EXPECT_EQ(refusal([&] { limits.check(head, two_parts()); }), "it claims to be longer than it is");
}

}  // namespace
}  // namespace rpc_backends
