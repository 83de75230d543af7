#include "old_strings.h"

#include <stdexcept>
#include <string>

static_assert(sizeof(std::string) == sizeof(void*), "this file has the old layout of std::string");

namespace rpc_backends::old_strings {

Text listen(Transport& transport, const char* name) {
  const std::string address(transport.listen(0, std::string(name)));
  return address;
}

void learn(Transport& transport, const char* name, const char* address) {
  transport.learn(1, std::string(name), std::string(address));
}

Text error_of_send(Transport& transport) {
  try {
    transport.send(1, {}, false);
  } catch (const TransportError& error) {
    return std::string(error.what());
  }
  return {};
}

Text reason_after_reject(Transport& transport, const char* reason) {
  transport.reject(1, std::string(reason));
  Event event;
  transport.receive(event);
  const std::string text(event.reason);
  return text;
}

Text metric(Transport& transport, const char* name) {
  const std::string value(transport.metrics().at(std::string(name)));
  return value;
}

bool moves(Transport& transport, const char* device_type) {
  return transport.moves(std::string(device_type));
}

void fail_allocations(Transport& transport, const char* text) {
  transport.set_allocator([text = std::string(text)](Memory, size_t) -> Part { throw std::runtime_error(text); });
}

namespace {

class Head final : public RequestHead {
 public:
  Head(const char* worker, const char* peer, const char* function)
      : worker_(worker), peer_(peer), function_(function) {}

  Direction direction() const override { return Direction::kIncoming; }
  int32_t type() const override { return kPythonCall; }
  const std::vector<int32_t>& wrappers() const override { return wrappers_; }
  int peer_id() const override { return 1; }
  std::string_view peer() const override { return peer_; }
  std::string_view worker() const override { return worker_; }
  std::chrono::milliseconds timeout() const override { return {}; }
  uint64_t payload_bytes() const override { return 0; }
  size_t tensors() const override { return 0; }
  std::string_view function() const override { return function_; }
  uint64_t tensor_bytes() const override { throw std::logic_error("it was " + std::string("passed on")); }
  uint64_t digest() const override { return 0; }
  uint64_t full_digest() const override { return 0; }

 private:
  const std::string worker_, peer_, function_;
  const std::vector<int32_t> wrappers_{kForwardAutogradRequest};
};

class SomeRequest final : public Request {
 public:
  explicit SomeRequest(const Head& head) : head_(head) {}

  const RequestHead& head() const override { return head_; }
  void observe(std::shared_ptr<Observer> seen) override { observer = std::move(seen); }
  bool carries_context() const override { return false; }
  void attach(std::string_view /*context*/) override {}
  std::string_view context() const override { return {}; }
  void pass() override {}
  void repeat(uint64_t /*times*/) override {}
  void answer(int32_t /*type*/, std::string_view /*payload*/) override {}
  void drop() override {}
  void fail(std::string_view text, ErrorKind /*kind*/) override { refusal = text; }

  std::shared_ptr<Observer> observer;
  std::string refusal;

 private:
  const Head& head_;
};

class SomeAnswer final : public Answer {
 public:
  explicit SomeAnswer(const char* error) : error_(error) {}

  bool is_error() const override { return true; }
  Text error() const override { return error_; }
  int32_t type() const override { return 0; }
  std::string_view payload() const override { return {}; }
  uint64_t bytes() const override { return 0; }
  void pass() override {}
  void drop() override {}
  void fail(std::string_view text, ErrorKind /*kind*/) override { replacement = text; }

  std::string replacement;

 private:
  const std::string error_;
};

std::shared_ptr<SomeRequest> intercepted(Interceptor& interceptor, const Head& head, const std::string& worker) {
  const AgentInfo agent{worker, false, nullptr};
  interceptor.on_start(agent);
  auto request = std::make_shared<SomeRequest>(head);
  interceptor.on_request(request);
  return request;
}

}  // namespace

Text why_refused(Interceptor& interceptor, const char* worker, const char* peer, const char* function) {
  const Head head(worker, peer, function);
  return intercepted(interceptor, head, worker)->refusal;
}

Text why_replaced(Interceptor& interceptor, const char* error) {
  const Head head("a", "b", "c");
  const auto observer = intercepted(interceptor, head, "a")->observer;
  const auto answer = std::make_shared<SomeAnswer>(error);
  observer->on_answer(answer);
  End end;
  end.text = std::string(error);
  observer->on_end(end);
  return answer->replacement;
}

}  // namespace rpc_backends::old_strings
