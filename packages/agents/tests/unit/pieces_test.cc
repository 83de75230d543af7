#include "wire/pieces.h"

#include <gtest/gtest.h>

#include "parts.h"

namespace rpc_backends {
namespace {

constexpr uint64_t kShort = 100;
constexpr uint64_t kStorage = kPieceBytes + kShort;
const c10::Device kCpu(c10::kCPU);

const ArrivingMessage::Reserve kNoLimit = [](uint64_t) {};

PieceHead head_of(uint32_t storage, uint64_t offset, uint64_t size = kStorage) {
  PieceHead head;
  head.storage = storage;
  head.storage_size = size;
  head.offset = offset;
  return head;
}

Part bytes_for(const PieceHead& head, char byte) {
  return part_with(std::string(std::min(kPieceBytes, head.storage_size - head.offset), byte));
}

class ArrivingMessageTest : public testing::Test {
 protected:
  std::optional<ArrivingMessage::Whole> add(const PieceHead& head, char byte) {
    Copies copies;
    auto whole = message.add_piece(head, bytes_for(head, byte), kCpu, {}, copies, reserve);
    copies.wait();
    return whole;
  }

  std::optional<ArrivingMessage::Whole> add_message(uint64_t bytes_in_pieces) {
    Head head;
    head.bytes_in_pieces = bytes_in_pieces;
    return message.add_message(head, parts_with({"the message"}), {}, reserve);
  }

  void expect_bad(const std::function<void()>& work, const std::string& text) {
    try {
      work();
      ADD_FAILURE() << "no BadFrame";
    } catch (const BadFrame& error) {
      EXPECT_EQ(error.what(), text);
    }
  }

  uint64_t reserved = 0;
  const ArrivingMessage::Reserve reserve = [this](uint64_t bytes) { reserved += bytes; };
  ArrivingMessage message;
};

TEST_F(ArrivingMessageTest, IsWholeWhenItComesAfterAllItsPieces) {
  EXPECT_FALSE(add(head_of(0, kPieceBytes), 'b'));
  EXPECT_FALSE(add(head_of(0, 0), 'a'));
  const auto whole = add_message(kStorage);
  ASSERT_TRUE(whole);
  EXPECT_EQ(bytes_in(whole->parts[0]), "the message");
  EXPECT_EQ(whole->bytes, kStorage);
  const c10::Storage& storage = whole->storages.at(0);
  ASSERT_EQ(storage.nbytes(), kStorage);
  const auto* const bytes = static_cast<const char*>(storage.data());
  EXPECT_EQ(bytes[0], 'a');
  EXPECT_EQ(bytes[kPieceBytes - 1], 'a');
  EXPECT_EQ(bytes[kPieceBytes], 'b');
  EXPECT_EQ(bytes[kStorage - 1], 'b');
}

TEST_F(ArrivingMessageTest, MayComeBeforeItsPieces) {
  EXPECT_FALSE(add_message(2 * kStorage));
  EXPECT_FALSE(add(head_of(3, 0), 'a'));
  EXPECT_FALSE(add(head_of(1, 0), 'c'));
  EXPECT_FALSE(add(head_of(3, kPieceBytes), 'b'));
  const auto whole = add(head_of(1, kPieceBytes), 'd');
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->storages.size(), 2U);
  EXPECT_EQ(static_cast<const char*>(whole->storages.at(1).data())[0], 'c');
  EXPECT_EQ(static_cast<const char*>(whole->storages.at(3).data())[0], 'a');
}

TEST_F(ArrivingMessageTest, ReservesEachStorageOnceAndBeforeItsMemory) {
  (void)add(head_of(0, 0), 'a');
  (void)add(head_of(0, kPieceBytes), 'b');
  EXPECT_EQ(reserved, kStorage);
  Copies copies;
  const PieceHead head = head_of(1, 0, uint64_t{1} << 60);  // no memory has that size
  const ArrivingMessage::Reserve refuse = [](uint64_t) { throw BadFrame("too many bytes"); };
  expect_bad([&] { (void)message.add_piece(head, bytes_for(head, 'x'), kCpu, {}, copies, refuse); }, "too many bytes");
}

TEST_F(ArrivingMessageTest, RefusesAPieceOrMessageThatComesTwice) {
  (void)add(head_of(0, 0), 'a');
  const std::string twice = "a piece of a storage differs from the others, or came twice";
  expect_bad([&] { (void)add(head_of(0, 0), 'a'); }, twice);
  expect_bad([&] { (void)add(head_of(0, kPieceBytes, kStorage + 1), 'b'); }, twice);
  EXPECT_FALSE(add_message(kStorage));
  expect_bad([&] { (void)add_message(kStorage); }, "it came twice");
}

TEST_F(ArrivingMessageTest, RefusesMorePiecesThanItClaims) {
  EXPECT_FALSE(add_message(kPieceBytes - 1));
  expect_bad([&] { (void)add(head_of(0, 0), 'a'); }, "it has more pieces than it claims");
}

TEST_F(ArrivingMessageTest, IgnoresPiecesAfterItWasDropped) {
  (void)add(head_of(0, 0), 'a');
  EXPECT_TRUE(message.drop());
  EXPECT_FALSE(message.drop());
  EXPECT_TRUE(message.is_dropped());
  EXPECT_FALSE(add(head_of(0, kPieceBytes), 'b'));
  EXPECT_FALSE(add_message(kStorage));
}

using Key = ArrivingMessages::Key;

constexpr uint64_t kMessageBytes = 1000, kRequestsBytes = 1500;

Key request(int peer, uint64_t call) {
  return {peer, FrameKind::kRequest, call, 1};
}

Key answer_of(int peer, uint64_t call) {
  return {peer, FrameKind::kAnswer, call, 1};
}

bool is_awaited(const Key& key) {
  return key.call != 99;
}

TEST(ArrivingMessages, FindsWhatWasAdded) {
  ArrivingMessages messages(kMessageBytes, kRequestsBytes);
  EXPECT_EQ(messages.find(request(1, 1)), nullptr);
  const auto message = messages.find_or_add(request(1, 1));
  EXPECT_EQ(messages.find(request(1, 1)), message);
  EXPECT_EQ(messages.find_or_add(request(1, 1)), message);
  Key restarted = request(1, 1);
  restarted.session = 2;
  EXPECT_NE(messages.find_or_add(restarted), message);
  messages.remove(request(1, 1));
  EXPECT_EQ(messages.find(request(1, 1)), nullptr);
  EXPECT_EQ(messages.size(), 1U);
}

TEST(ArrivingMessages, LimitsTheBytesOfAMessage) {
  ArrivingMessages messages(kMessageBytes, kRequestsBytes);
  (void)messages.find_or_add(answer_of(1, 1));
  messages.reserve(answer_of(1, 1), kMessageBytes);
  EXPECT_THROW(messages.reserve(answer_of(1, 1), 1), BadFrame);
  EXPECT_THROW(messages.reserve(answer_of(1, 1), UINT64_MAX), BadFrame);
  EXPECT_THROW(messages.reserve(answer_of(1, 2), 1), BadFrame) << "it was given up";
}

TEST(ArrivingMessages, LimitsTheUnfinishedRequestsOfAPeerTogether) {
  ArrivingMessages messages(kMessageBytes, kRequestsBytes);
  for (const uint64_t call : {1, 2}) {
    (void)messages.find_or_add(request(1, call));
  }
  messages.reserve(request(1, 1), 1000);
  messages.reserve(request(1, 2), 500);
  EXPECT_THROW(messages.reserve(request(1, 2), 1), BadFrame);
  (void)messages.find_or_add(request(2, 1));
  messages.reserve(request(2, 1), 1000);  // another peer
  messages.remove(request(1, 1));
  messages.reserve(request(1, 2), 500);
}

TEST(ArrivingMessages, LimitsTheNumberOfUnfinishedMessagesOfAPeer) {
  ArrivingMessages messages(kMessageBytes, kRequestsBytes);
  for (uint64_t call = 0; call < ArrivingMessages::kMost; ++call) {
    (void)messages.find_or_add(answer_of(1, call));
  }
  EXPECT_THROW(messages.find_or_add(answer_of(1, ArrivingMessages::kMost)), BadFrame);
  EXPECT_NE(messages.find_or_add(answer_of(2, 0)), nullptr);
}

TEST(ArrivingMessages, RefusesASecondSessionOfAnAnswer) {
  ArrivingMessages messages(kMessageBytes, kRequestsBytes);
  for (const uint64_t session : {5, 3, 7}) {
    const Key key{1, FrameKind::kAnswer, 1, session};
    if (session == 5) {
      EXPECT_NE(messages.find_or_add(key), nullptr);
    } else {
      EXPECT_THROW(messages.find_or_add(key), BadFrame) << session;
    }
  }
  const Key of_another_peer{2, FrameKind::kAnswer, 1, 3}, of_another_call{1, FrameKind::kAnswer, 2, 3};
  EXPECT_NE(messages.find_or_add(of_another_peer), nullptr);
  EXPECT_NE(messages.find_or_add(of_another_call), nullptr);
  EXPECT_EQ(messages.size(), 3U);
}

TEST(ArrivingMessages, DropsTheMessagesOfAPeerThatHasLeft) {
  ArrivingMessages messages(kMessageBytes, kRequestsBytes);
  const auto left = messages.find_or_add(request(1, 1)), stays = messages.find_or_add(request(2, 1));
  messages.forget(1);
  EXPECT_TRUE(left->is_dropped());
  EXPECT_FALSE(stays->is_dropped());
  messages.clear();
  EXPECT_TRUE(stays->is_dropped());
  EXPECT_EQ(messages.size(), 0U);
}

TEST(ArrivingMessages, DropsAnswersThatNothingWaitsFor) {
  ArrivingMessages messages(kMessageBytes, kRequestsBytes);
  const auto stale = messages.find_or_add(answer_of(1, 99)), awaited = messages.find_or_add(answer_of(1, 1));
  EXPECT_TRUE(messages.drop_stale(is_awaited).empty());  // it returns requests only
  EXPECT_TRUE(stale->is_dropped());
  EXPECT_FALSE(awaited->is_dropped());
}

TEST(ArrivingMessages, DropsRequestsOfASilentPeerSoonerAfterALostConnection) {
  ArrivingMessages messages(kMessageBytes, kRequestsBytes);
  const auto calls_dropped_after = [&messages](ArrivingMessages::Clock::duration silence) {
    std::vector<uint64_t> calls;
    for (const Key& key : messages.drop_stale(is_awaited, ArrivingMessages::Clock::now() + silence)) {
      calls.push_back(key.call);
    }
    return calls;
  };
  constexpr std::chrono::seconds kSoon = ArrivingMessages::kSilenceAfterLoss, kLate = ArrivingMessages::kSilence;
  constexpr std::chrono::seconds kBefore{1};  // more than the test takes
  const auto from_lost = messages.find_or_add(request(1, 11)), from_silent = messages.find_or_add(request(2, 22));
  messages.lose(1);
  EXPECT_TRUE(calls_dropped_after(kSoon - kBefore).empty());
  EXPECT_EQ(calls_dropped_after(kSoon), std::vector<uint64_t>{11});
  EXPECT_TRUE(from_lost->is_dropped());
  EXPECT_TRUE(calls_dropped_after(kLate - kBefore).empty());
  EXPECT_FALSE(from_silent->is_dropped());
  EXPECT_EQ(calls_dropped_after(kLate), std::vector<uint64_t>{22});
  EXPECT_TRUE(from_silent->is_dropped());
}

TEST(ArrivingMessages, ALostConnectionDoesNotShortenTheTimeOfLaterRequests) {
  ArrivingMessages messages(kMessageBytes, kRequestsBytes);
  const auto cut_off = messages.find_or_add(request(1, 11));
  messages.lose(1);
  const auto later = messages.find_or_add(request(1, 12));
  const auto soon = ArrivingMessages::Clock::now() + ArrivingMessages::kSilenceAfterLoss;
  ASSERT_EQ(messages.drop_stale(is_awaited, soon).size(), 1U);
  EXPECT_TRUE(cut_off->is_dropped());
  EXPECT_FALSE(later->is_dropped());
}

TEST(ArrivingMessages, DropsARequestOfWhichNothingComesThoughItsPeerIsHeard) {
  ArrivingMessages messages(kMessageBytes, kRequestsBytes);
  const auto begin = ArrivingMessages::Clock::now();
  const auto late = begin + ArrivingMessages::kSilenceOfRequest;
  const auto unfinished = messages.find_or_add(request(1, 11), begin);
  const auto goes_on = messages.find_or_add(request(1, 12), begin);
  (void)messages.find(request(1, 12), late);
  EXPECT_TRUE(messages.drop_stale(is_awaited, late).empty());
  EXPECT_FALSE(unfinished->is_dropped());
  EXPECT_EQ(messages.drop_stale(is_awaited, late + std::chrono::seconds(1)).size(), 1U);
  EXPECT_TRUE(unfinished->is_dropped());
  EXPECT_FALSE(goes_on->is_dropped());
}

TEST(ArrivingMessages, ARequestOfWhichMoreComesAfterALostConnectionStays) {
  ArrivingMessages messages(kMessageBytes, kRequestsBytes);
  const auto message = messages.find_or_add(request(1, 11));
  messages.lose(1);
  const auto before = ArrivingMessages::Clock::now();
  (void)messages.find(request(1, 11), before + std::chrono::seconds(1));
  EXPECT_TRUE(messages.drop_stale(is_awaited, before + ArrivingMessages::kSilenceAfterLoss).empty());
  EXPECT_FALSE(message->is_dropped());
}

TEST(ArrivingMessages, TheTimeAfterALossCountsFromTheLossAndEndsWithTheNextPiece) {
  constexpr std::chrono::seconds kLonger = ArrivingMessages::kSilenceAfterLoss + std::chrono::seconds(1);
  constexpr std::chrono::seconds kSecond{1};
  ArrivingMessages messages(kMessageBytes, kRequestsBytes);
  const auto begin = ArrivingMessages::Clock::now();
  (void)messages.find_or_add(request(1, 11), begin);
  const auto lost = begin + kLonger;  // meanwhile, the piece of another request is on its way
  messages.lose(1, lost);
  EXPECT_TRUE(messages.drop_stale(is_awaited, lost + kSecond).empty());
  const auto heard = lost + kSecond;
  (void)messages.find_or_add(request(1, 11), heard);  // so it has another connection
  EXPECT_TRUE(messages.drop_stale(is_awaited, heard + kLonger).empty());
}

TEST(ArrivingMessages, ASecondLossGivesARequestNoMoreTime) {
  constexpr std::chrono::seconds kSecond{1};
  ArrivingMessages messages(kMessageBytes, kRequestsBytes);
  const auto begin = ArrivingMessages::Clock::now();
  (void)messages.find_or_add(request(1, 11), begin);
  messages.lose(1, begin);
  messages.lose(1, begin + kSecond);
  EXPECT_EQ(messages.drop_stale(is_awaited, begin + ArrivingMessages::kSilenceAfterLoss + kSecond).size(), 1U);
}

}  // namespace
}  // namespace rpc_backends
