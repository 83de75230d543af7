// Messages as UCX's active messages and back, and what a peer may send instead.
#include "incoming.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "outgoing.h"
#include "parts.h"

namespace rpc_backends::ucx {
namespace {

using wire::Kind;

constexpr uint64_t kMaxMessage = uint64_t{1} << 30;
constexpr size_t kMaxHeader = 8192;
constexpr wire::Token kToken{1, 2};

// An active message on its way.
struct Sent {
  Kind kind;
  std::string header, data;
};

std::vector<Sent> send(const Parts& parts, uint64_t number, size_t max_header = kMaxHeader) {
  Outgoing outgoing(parts, max_header);
  std::vector<Sent> all;
  for (const Outgoing::Piece& piece : outgoing.pieces(kToken, number)) {
    all.push_back({piece.kind,
                   {static_cast<const char*>(piece.header), piece.header_size},
                   {static_cast<const char*>(piece.data), piece.size}});
  }
  return all;
}

Incoming::Target place(Incoming& incoming, const Sent& sent) {
  const Part header = part_with(sent.header);  // of exactly this size, for AddressSanitizer
  return sent.kind == Kind::kMessage ? incoming.message(header.data, header.size, sent.data.size())
                                     : incoming.part(header.data, header.size, sent.data.size());
}

void fill(const Incoming::Target& target, const Sent& sent) {
  ASSERT_EQ(target.memory.size, sent.data.size());
  if (!sent.data.empty()) {
    std::memcpy(const_cast<void*>(target.memory.data), sent.data.data(), sent.data.size());
  }
}

std::vector<Parts> receive(Incoming& incoming, const std::vector<Sent>& all) {
  std::vector<Parts> complete;
  for (const Sent& sent : all) {
    const Incoming::Target target = place(incoming, sent);
    fill(target, sent);
    incoming.filled(target, complete);
  }
  return complete;
}

void expect_same(const Parts& parts, const Parts& expected) {
  ASSERT_EQ(parts.size(), expected.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_TRUE(bytes_in(parts[i]) == bytes_in(expected[i])) << "part " << i;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(parts[i].data) % 16, 0U) << "part " << i;
  }
}

std::string malformed(const std::function<void()>& work) {
  try {
    work();
  } catch (const Malformed& error) {
    return error.what();
  }
  ADD_FAILURE() << "it is accepted";
  return {};
}

Parts parts_of_sizes(const std::vector<size_t>& sizes) {
  Parts parts;
  for (const size_t size : sizes) {
    parts.push_back(part_with(std::string(size, static_cast<char>('a' + parts.size() % 26))));
  }
  return parts;
}

TEST(Incoming, ReturnsPartsOfEverySizeUnchanged) {
  Incoming incoming(kMaxMessage);
  uint64_t number = 0;
  for (const std::vector<size_t>& sizes : std::vector<std::vector<size_t>>{
           {},
           {0},
           {1, 15, 16, 17},
           {wire::kMaxSmall},
           {wire::kMaxSmall + 1},
           {10, wire::kMaxSmall + 1, 20},
           {wire::kMaxSmall + 1, 0, 100000, 5},
           std::vector<size_t>(300, 3),
       }) {
    const Parts parts = parts_of_sizes(sizes);
    const std::vector<Parts> complete = receive(incoming, send(parts, number++));
    ASSERT_EQ(complete.size(), 1U);
    expect_same(complete[0], parts);
  }
}

TEST(Incoming, AShortHeaderMakesTheSizesAPayload) {
  const Parts parts = parts_of_sizes({10, 5000});
  EXPECT_EQ(send(parts, 0).size(), 1U);
  EXPECT_EQ(send(parts, 0, 40).size(), 2U);
  Incoming incoming(kMaxMessage);
  const std::vector<Parts> complete = receive(incoming, send(parts, 0, 40));
  ASSERT_EQ(complete.size(), 1U);
  expect_same(complete[0], parts);
}

TEST(Incoming, ThePiecesOfAMessageMayArriveInAnyOrder) {
  const Parts parts = parts_of_sizes({10, 5000, 6000, 7000});
  for (const size_t max_header : {kMaxHeader, size_t{40}}) {
    std::vector<Sent> sent = send(parts, 0, max_header);
    std::vector<size_t> order(sent.size());
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = i;
    }
    do {
      std::vector<Sent> shuffled;
      for (const size_t i : order) {
        shuffled.push_back(sent[i]);
      }
      Incoming incoming(kMaxMessage);
      const std::vector<Parts> complete = receive(incoming, shuffled);
      ASSERT_EQ(complete.size(), 1U);
      expect_same(complete[0], parts);
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST(Incoming, MessagesAreReturnedInTheOrderOfSending) {
  Incoming incoming(kMaxMessage);
  const auto first = send(parts_of_sizes({5000, 6000}), 0), second = send(parts_of_sizes({1}), 1);
  std::vector<Parts> complete = receive(incoming, second);
  EXPECT_TRUE(complete.empty());
  EXPECT_TRUE(receive(incoming, {first[0]}).empty());
  complete = receive(incoming, {first[1]});
  ASSERT_EQ(complete.size(), 2U);
  EXPECT_EQ(complete[0].size(), 2U);
  EXPECT_EQ(complete[1].size(), 1U);
}

TEST(Incoming, LargeMessagesHaveNumbersOfTheirOwn) {
  Incoming incoming(kMaxMessage, wire::kFirstLarge);
  const auto sent = send(parts_of_sizes({5000}), wire::kFirstLarge);
  EXPECT_EQ(receive(incoming, sent).size(), 1U);
  EXPECT_EQ(malformed([&] { place(incoming, sent[0]); }), "a message has arrived twice");
}

TEST(Incoming, APayloadMayBeFilledLater) {
  Incoming incoming(kMaxMessage);
  const auto sent = send(parts_of_sizes({5000, 6000}), 0);
  const Incoming::Target first = place(incoming, sent[0]), second = place(incoming, sent[1]);
  std::vector<Parts> complete;
  fill(second, sent[1]);
  incoming.filled(second, complete);
  EXPECT_TRUE(complete.empty());
  fill(first, sent[0]);
  incoming.filled(first, complete);
  EXPECT_EQ(complete.size(), 1U);
}

TEST(Incoming, RefusesHeadersThatAreCutAnywhere) {
  const auto sent = send(parts_of_sizes({10, 5000, 6000}), 0);
  for (const Sent& whole : sent) {
    for (size_t size = 0; size < whole.header.size(); ++size) {
      Incoming incoming(kMaxMessage);
      EXPECT_THROW(place(incoming, {whole.kind, whole.header.substr(0, size), whole.data}), Malformed) << size;
    }
  }
}

TEST(Incoming, AnyChangedByteOfAHeaderGivesAMessageOrMalformed) {
  const auto sent = send(parts_of_sizes({10, 5000, 6000}), 0);
  size_t refused = 0;
  for (size_t at = 0; at < sent[0].header.size(); ++at) {
    for (const char change : {'\x01', '\x80', '\xff'}) {
      std::vector<Sent> changed = sent;
      changed[0].header[at] = static_cast<char>(changed[0].header[at] ^ change);
      Incoming incoming(uint64_t{1} << 20);
      try {
        (void)receive(incoming, changed);
      } catch (const Malformed&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 50U);
}

TEST(Incoming, RefusesWhatArrivesTwice) {
  Incoming incoming(kMaxMessage);
  const auto sent = send(parts_of_sizes({5000, 6000}), 0);
  const std::string twice = "a message has arrived twice";
  place(incoming, sent[0]);
  EXPECT_EQ(malformed([&] { place(incoming, sent[0]); }), twice);
  place(incoming, sent[1]);
  EXPECT_EQ(malformed([&] { place(incoming, sent[1]); }), "a part of a message has arrived twice");
  Incoming second_incoming(kMaxMessage);
  (void)receive(second_incoming, sent);
  EXPECT_EQ(malformed([&] { place(second_incoming, sent[0]); }), twice);
}

TEST(Incoming, RefusesANumberFarAhead) {
  Incoming incoming(kMaxMessage);
  EXPECT_EQ(malformed([&] { place(incoming, send({}, (uint64_t{1} << 20) + 1)[0]); }),
            "a message has a number that is too large");
  place(incoming, send({}, uint64_t{1} << 20)[0]);
}

TEST(Incoming, RefusesSizesBeyondTheLimitWithoutTheirMemory) {
  const std::string too_large = "a message is larger than the 1000-byte limit";
  for (const size_t size : {size_t{1001}, size_t{5000}}) {
    Incoming incoming(1000);
    std::vector<Sent> sent = send(parts_of_sizes({size}), 0);
    EXPECT_EQ(malformed([&] { (void)receive(incoming, sent); }), too_large) << size;
  }
  Incoming incoming(1000);
  EXPECT_EQ(malformed([&] { (void)receive(incoming, send(parts_of_sizes({400, 400, 400}), 0)); }), too_large);
}

TEST(Incoming, LimitsThePartsThatArriveBeforeTheirMessage) {
  Incoming incoming(10000);
  const auto early = [&](uint64_t number, size_t size) {
    wire::PartOfMessage head{kToken, number, 0};
    return incoming.part(&head, sizeof head, size);
  };
  early(0, 5000);
  early(1, 5000);
  EXPECT_EQ(malformed([&] { early(2, 1); }), "too many parts have arrived before their message");
  // The sum of all sizes would be 0.
  EXPECT_EQ(malformed([&] { early(3, SIZE_MAX - 9999); }), "a part of a message has an invalid header");
}

TEST(Incoming, RefusesMorePartsThanAMessageMayHave) {
  for (const bool is_one_more : {false, true}) {
    wire::Message head;
    head.token = kToken;
    head.count = static_cast<uint32_t>(wire::kMaxParts + (is_one_more ? 1 : 0));
    head.in_header = 1;
    Incoming incoming(kMaxMessage);
    EXPECT_EQ(malformed([&] { incoming.message(&head, sizeof head, 0); }),
              is_one_more ? "a message has too many parts" : "the sizes of a message are missing");
  }
}

TEST(Incoming, RefusesAPartThatDoesNotHaveItsDeclaredSize) {
  Incoming incoming(kMaxMessage);
  const auto sent = send(parts_of_sizes({5000, 6000}), 0);
  place(incoming, sent[0]);
  EXPECT_EQ(malformed([&] { place(incoming, {Kind::kPart, sent[1].header, std::string(5999, 'x')}); }),
            "a part of a message does not have its declared size");
  EXPECT_EQ(malformed([&] { place(incoming, {Kind::kPart, sent[1].header, ""}); }),
            "a part of a message has an invalid header");
}

TEST(Incoming, APartOnADeviceNeedsAnAllocatorAndAValidDevice) {
  Incoming incoming(kMaxMessage);
  wire::DevicePart head;
  head.part = {kToken, 0, 0};
  std::memcpy(head.type.data(), "cuda", 4);
  EXPECT_EQ(malformed([&] { (void)incoming.device_part(&head, sizeof head, 100, nullptr); }),
            "a part is on a device, and this worker has no device maps");
  Memory asked;
  const DeviceAllocator allocate = [&](Memory where, size_t size) {
    asked = where;
    EXPECT_STREQ(where.type, "cuda");
    return part_with(std::string(size, '\0'));
  };
  head.device = 3;
  EXPECT_EQ(incoming.device_part(&head, sizeof head, 100, allocate).memory.size, 100U);
  EXPECT_EQ(asked.index, 3);
  head.type.fill('x');  // no end
  EXPECT_EQ(malformed([&] { (void)incoming.device_part(&head, sizeof head, 100, allocate); }),
            "a part on a device has an invalid header");
}

TEST(Outgoing, AMessageIsLargeByTheBytesOfAllItsParts) {
  EXPECT_FALSE(Outgoing(parts_of_sizes({10, wire::kLargeMessage - 11}), kMaxHeader).is_large());
  EXPECT_TRUE(Outgoing(parts_of_sizes({10, wire::kLargeMessage - 10}), kMaxHeader).is_large());
}

TEST(Outgoing, RefusesMorePartsThanAMessageMayHave) {
  EXPECT_THROW(Outgoing(Parts(wire::kMaxParts + 1), kMaxHeader), TransportError);
}

}  // namespace
}  // namespace rpc_backends::ucx
