#include "message_reader.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "parts.h"
#include "rpc_backends_agents/fd.h"
#include "socket_pair.h"

namespace rpc_backends::zeromq {
namespace {

using Outcome = MessageReader::Outcome;

constexpr uint64_t kMaxMessage = uint64_t{1} << 20;

std::string header(wire::Kind kind, uint32_t count) {
  wire::Header made;
  made.kind = static_cast<uint8_t>(kind);
  made.count = count;
  return {reinterpret_cast<const char*>(&made), sizeof made};
}

std::string message(const std::vector<std::string>& parts) {
  std::string bytes = header(wire::Kind::kMessage, static_cast<uint32_t>(parts.size()));
  for (const std::string& part : parts) {
    const uint64_t size = part.size();
    bytes.append(reinterpret_cast<const char*>(&size), sizeof size);
  }
  for (const std::string& part : parts) {
    bytes += part;
  }
  return bytes;
}

class MessageReaderTest : public testing::Test {
 protected:
  MessageReaderTest() {
    auto [here, there] = socket_pair();
    near = std::make_unique<Channel>(std::move(here));
    far = std::move(there);
  }

  void arrive(const std::string& bytes) {
    ASSERT_EQ(::write(far->get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }

  // The first outcome that says something.
  Outcome next() {
    Outcome outcome = Outcome::kPart;
    while (outcome == Outcome::kPart) {
      outcome = reader.next(*near);
    }
    return outcome;
  }

  void expect_malformed(const std::string& bytes, const std::string& text) {
    arrive(bytes);
    EXPECT_EQ(next(), Outcome::kMalformed);
    EXPECT_EQ(reader.text(), text);
  }

  std::unique_ptr<Channel> near;
  std::unique_ptr<Fd> far;
  MessageReader reader{kMaxMessage};
};

TEST_F(MessageReaderTest, IsBlockedWithoutData) {
  EXPECT_EQ(next(), Outcome::kBlocked);
  EXPECT_FALSE(reader.is_in_message());
}

TEST_F(MessageReaderTest, ReturnsMessagesHoweverTheirBytesAreSplit) {
  const std::vector<std::string> parts{"", "a", std::string(4096, 'b'), std::string(4097, 'c'), "d"};
  const std::string bytes = message(parts) + message({}) + message({"last"});
  for (const size_t size : {size_t{1}, size_t{7}, size_t{4096}, bytes.size()}) {
    std::vector<std::vector<std::string>> messages;
    for (size_t at = 0; at < bytes.size(); at += size) {
      arrive(bytes.substr(at, size));
      for (Outcome outcome = next(); outcome != Outcome::kBlocked; outcome = next()) {
        ASSERT_EQ(outcome, Outcome::kMessage) << reader.text();
        std::vector<std::string> texts;
        for (const Part& part : reader.parts()) {
          texts.push_back(bytes_in(part));
          EXPECT_EQ(reinterpret_cast<uintptr_t>(part.data) % 16, 0U);
        }
        messages.push_back(texts);
      }
    }
    EXPECT_TRUE(messages == (std::vector<std::vector<std::string>>{parts, {}, {"last"}})) << size;
  }
}

TEST_F(MessageReaderTest, KnowsThatAMessageIsIncomplete) {
  const std::string bytes = message({"0123456789"});
  arrive(bytes.substr(0, bytes.size() - 1));
  EXPECT_EQ(next(), Outcome::kBlocked);
  EXPECT_TRUE(reader.is_in_message());
  arrive(bytes.substr(bytes.size() - 1));
  EXPECT_EQ(next(), Outcome::kMessage);
  EXPECT_FALSE(reader.is_in_message());
  EXPECT_EQ(reader.bytes_read(), bytes.size());
}

TEST_F(MessageReaderTest, ReturnsHeartbeatsAndRefusals) {
  arrive(header(wire::Kind::kPing, 0) + header(wire::Kind::kPong, 0) + header(wire::Kind::kRefusal, 3) + "why");
  EXPECT_EQ(next(), Outcome::kPing);
  EXPECT_EQ(next(), Outcome::kPong);
  EXPECT_EQ(next(), Outcome::kRefusal);
  EXPECT_EQ(reader.text(), "why");
}

TEST_F(MessageReaderTest, ReportsTheEndOfTheConnection) {
  arrive(message({"x"}));
  far.reset();
  EXPECT_EQ(next(), Outcome::kMessage);
  EXPECT_EQ(next(), Outcome::kBlocked);  // the last read has emptied the socket
  EXPECT_EQ(next(), Outcome::kEnd);
  EXPECT_EQ(reader.text(), "");
}

TEST_F(MessageReaderTest, RefusesAnotherVersion) {
  std::string bytes = message({"x"});
  bytes[1] = 99;
  expect_malformed(bytes, "the data is not a message of this protocol version");
}

TEST_F(MessageReaderTest, RefusesAnUnknownKind) {
  expect_malformed(header(static_cast<wire::Kind>(77), 0), "the data is not a message of this protocol version");
}

TEST_F(MessageReaderTest, RefusesSizesBeyondTheLimitWithoutTheirMemory) {
  std::string bytes = header(wire::Kind::kMessage, 2);
  bytes += std::string(16, '\xff');  // two sizes whose sum overflows
  expect_malformed(bytes, "a message is larger than the " + std::to_string(kMaxMessage) + "-byte limit");
}

TEST_F(MessageReaderTest, RefusesTooManyParts) {
  expect_malformed(header(wire::Kind::kMessage, wire::kMaxParts + 1), "a message has too many parts");
}

TEST_F(MessageReaderTest, RefusesALongReasonAndAHeartbeatWithParts) {
  expect_malformed(header(wire::Kind::kRefusal, wire::kLongestReason + 1), "a refusal is too long");
  reader.~MessageReader();
  new (&reader) MessageReader(kMaxMessage);
  expect_malformed(header(wire::Kind::kPing, 1), "a heartbeat has parts");
}

}  // namespace
}  // namespace rpc_backends::zeromq
