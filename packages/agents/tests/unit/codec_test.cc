#include "wire/codec.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "parts.h"

namespace rpc_backends {
namespace {

namespace rpc = torch::distributed::rpc;

c10::intrusive_ptr<rpc::Message> message_of(const std::string& payload, std::vector<at::Tensor> tensors) {
  return c10::make_intrusive<rpc::Message>(std::vector<char>(payload.begin(), payload.end()), std::move(tensors),
                                           rpc::MessageType::PYTHON_CALL, 5);
}

// What the receiver gets: copies of the parts.
Parts sent(const std::string& payload, std::vector<at::Tensor> tensors, uint64_t call = 7) {
  return copy(encode(message_of(payload, std::move(tensors)), call));
}

Decoded received(const Parts& parts) {
  return decode(parts, Limits());
}

std::string payload_of(const Decoded& decoded) {
  return {decoded.message->payload().begin(), decoded.message->payload().end()};
}

at::Tensor numbers(int64_t count) {
  return at::arange(count, at::kFloat);
}

TEST(Codec, KeepsCallTypeAndPayload) {
  const Decoded decoded = received(sent("payload", {}, 1234567890123));
  EXPECT_EQ(decoded.kind, FrameKind::kRequest);
  EXPECT_EQ(decoded.call, 1234567890123U);
  EXPECT_EQ(decoded.message->type(), rpc::MessageType::PYTHON_CALL);
  EXPECT_EQ(payload_of(decoded), "payload");
}

TEST(Codec, SendsALargePayloadAsAPartOfItsOwn) {
  const std::string large(kInlineBytes + 1, 'p');
  const Parts parts = sent(large, {});
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(payload_of(received(parts)), large);
  EXPECT_EQ(sent(large.substr(1), {}).size(), 1U);
}

TEST(Codec, KeepsTensorsOfEverySizeAndType) {
  const std::vector<at::Tensor> tensors{
      at::empty({0}),
      at::scalar_tensor(3.5, at::kDouble),
      numbers(10),
      numbers(100000),
      at::ones({3, 0, 2}, at::kLong),
      numbers(3).to(at::kBool),
      numbers(12).to(at::kBFloat16).reshape({3, 4}),
      at::complex(numbers(5), numbers(5)),
  };
  const Decoded decoded = received(sent("", tensors));
  ASSERT_EQ(decoded.message->tensors().size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& same = decoded.message->tensors()[i];
    EXPECT_EQ(same.sizes(), tensors[i].sizes()) << i;
    EXPECT_EQ(same.scalar_type(), tensors[i].scalar_type()) << i;
    EXPECT_TRUE(at::equal(same, tensors[i])) << i;
  }
}

TEST(Codec, TensorsThatShareMemoryShareItAfterwards) {
  const at::Tensor base = numbers(5000);
  const Decoded decoded = received(sent("", {base.slice(0, 0, 100), base.slice(0, 50, 200)}));
  const auto& tensors = decoded.message->tensors();
  tensors[0][60] = -1;
  EXPECT_EQ(tensors[1][10].item<float>(), -1);
}

TEST(Codec, KeepsTransposedAndSparseTensors) {
  const at::Tensor matrix = numbers(6).reshape({2, 3}).t();
  const at::Tensor sparse =
      at::sparse_coo_tensor(at::tensor({int64_t{0}, int64_t{2}}).reshape({2, 1}), at::ones({1}), {3, 4});
  const Decoded decoded = received(sent("", {matrix, sparse}));
  EXPECT_TRUE(at::equal(decoded.message->tensors()[0], matrix));
  EXPECT_TRUE(at::equal(decoded.message->tensors()[1].to_dense(), sparse.to_dense()));
}

TEST(Codec, SendsLargeTensorsWithoutACopy) {
  const at::Tensor large = numbers(100000);
  const Parts parts = encode(message_of("", {large}), 1);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[1].data, large.const_data_ptr());
}

TEST(Codec, KeepsContextsOfARequest) {
  const Decoded decoded = received(copy(encode(message_of("x", {}), 1, {{"trace", "bytes"}})));
  ASSERT_EQ(decoded.contexts.size(), 1U);
  EXPECT_EQ(decoded.contexts[0].name, "trace");
  EXPECT_EQ(decoded.contexts[0].bytes, "bytes");
}

TEST(Codec, TheOwnerOfTheLargestPartLeavesLast) {
  Parts parts = encode(message_of("", {numbers(2000), numbers(100000)}), 1);
  const std::weak_ptr<void> last = last_to_leave(parts);
  parts.pop_back();
  EXPECT_TRUE(last.expired());
}

TEST(Codec, RefusesAFirstPartThatIsCutAnywhere) {
  Parts parts = sent("payload", {numbers(10), numbers(3000)});
  const std::string whole = bytes_in(parts[0]);
  for (size_t size = 0; size < whole.size(); ++size) {
    parts[0] = part_with(whole.substr(0, size));
    EXPECT_THROW(received(parts), BadFrame) << size;
  }
}

TEST(Codec, RefusesMissingAndAdditionalParts) {
  Parts parts = sent(std::string(5000, 'p'), {numbers(3000)});
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_THROW(received({parts[0], parts[1]}), BadFrame);
  EXPECT_THROW(received({parts[0]}), BadFrame);
  EXPECT_THROW(received({}), BadFrame);
  parts.push_back(part_with("more"));
  EXPECT_THROW(received(parts), BadFrame);
}

TEST(Codec, RefusesAStorageThatIsShorterThanItsTensor) {
  Parts parts = sent("", {numbers(3000)});
  parts[1] = part_with(bytes_in(parts[1]).substr(4));
  EXPECT_THROW(received(parts), BadFrame);
}

TEST(Codec, AnyChangedByteGivesAMessageOrBadFrame) {
  Parts parts = sent("payload", {numbers(10), numbers(3000).reshape({30, 100}).t()});
  const std::string whole = bytes_in(parts[0]);
  size_t refused = 0;
  for (size_t place = 0; place < whole.size(); ++place) {
    for (const char change : {'\x01', '\x80', '\xff'}) {
      std::string changed = whole;
      changed[place] = static_cast<char>(changed[place] ^ change);
      parts[0] = part_with(changed);
      try {
        const Decoded decoded = received(parts);
        for (const at::Tensor& tensor : decoded.message->tensors()) {
          if (tensor.layout() == at::kStrided && tensor.numel() <= 10000) {
            (void)tensor.clone(at::MemoryFormat::Contiguous);  // reads all of it
          }
        }
      } catch (const BadFrame&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 50U);
}

TEST(Codec, RefusesMoreTensorsThanTheLimit) {
  Limits limits;
  limits.tensors = 1;
  EXPECT_THROW(decode(sent("", {numbers(1), numbers(1)}), limits), BadFrame);
}

}  // namespace
}  // namespace rpc_backends
