// The view of a message that interceptors get, and what they may do with it.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inspect/request_inspector.h"
#include "intercept/intercepted_call.h"

namespace rpc_backends {

uint64_t bytes_of(const torch::distributed::rpc::Message& message);
MessagePtr copy_of(const torch::distributed::rpc::Message& message);

// Changes a bit of an element of the message's tensors, counted over all of them. Returns false if no element is in
// memory that this thread can change.
bool flip_bit_of(torch::distributed::rpc::Message& message, uint64_t element, uint64_t bit);

// A message with the properties read so far. Only one thread uses it at a time; a repeated request is copied.
class MessageHead final : public RequestHead {
 public:
  MessageHead(std::shared_ptr<InterceptedCall> call, MessagePtr message)
      : call_(std::move(call)),
        message_(std::move(message)),
        inspected_(inspect(*message_)),
        payload_bytes_(message_->payload().size()),
        tensors_(message_->tensors().size()) {}

  Direction direction() const override { return call_->direction_; }
  int32_t type() const override { return inspected_.type; }
  const std::vector<int32_t>& wrappers() const override { return inspected_.wrappers; }
  int peer_id() const override { return call_->peer_id_; }
  std::string_view peer() const override { return call_->peer(); }
  std::string_view worker() const override { return call_->chain_->agent().worker; }
  std::chrono::milliseconds timeout() const override { return call_->timeout_; }
  uint64_t payload_bytes() const override { return payload_bytes_; }
  size_t tensors() const override { return tensors_; }

  std::string_view function() const override {
    return read(function_, [this] { return function_of(inspected_); });
  }
  uint64_t tensor_bytes() const override {
    return read(tensor_bytes_, [this] { return tensor_bytes_of(*message_); });
  }
  uint64_t digest() const override {
    return read(digest_, [this] { return digest_of(inspected_, message_->tensors()); });
  }
  uint64_t full_digest() const override {
    return read(full_digest_, [this] { return full_digest_of(inspected_, message_->tensors()); });
  }

  bool flip_bit(uint64_t element, uint64_t bit) { return message_ && flip_bit_of(*message_, element, bit); }
  MessagePtr copy() const { return copy_of(*message_); }
  MessagePtr take() { return std::move(message_); }

 private:
  template <typename Value, typename Read>
  const Value& read(std::optional<Value>& known, const Read& from_message) const {
    if (!known) {
      if (!message_) {
        throw std::logic_error("a request that has been passed on cannot be read any more");
      }
      known = from_message();
    }
    return *known;
  }

  const std::shared_ptr<InterceptedCall> call_;
  MessagePtr message_;
  const InspectedRequest inspected_;
  const uint64_t payload_bytes_;
  const size_t tensors_;
  mutable std::optional<std::string> function_;
  mutable std::optional<uint64_t> tensor_bytes_, digest_, full_digest_;
};

}  // namespace rpc_backends
