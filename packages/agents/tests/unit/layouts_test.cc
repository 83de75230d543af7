// A transport and an interceptor with the new layout of std::string, used by an agent's side with the old one.
#include <gtest/gtest.h>

#include <string>

#include "old_strings.h"

namespace rpc_backends {
namespace {

static_assert(sizeof(std::string) > sizeof(void*), "this file has the new layout of std::string");

// Too long for the buffer inside a std::string, and short enough for it.
constexpr const char* kLong = "a text that is longer than the buffer inside a std::string";
constexpr const char* kShort = "short";

class NewTransport final : public Transport {
 public:
  Text listen(int /*self*/, std::string_view name) override { return "address of " + std::string(name); }
  void learn(int /*peer*/, std::string_view name, std::string_view address) override {
    learnt = std::string(name) + " at " + std::string(address);
  }
  void forget(int /*peer*/) override {}
  void send(int peer, Parts /*parts*/, bool /*reply*/) override {
    try {
      allocate_({}, 1);
    } catch (const std::runtime_error& error) {
      throw TransportError("no memory for worker " + std::to_string(peer) + ": " + error.what());
    }
  }
  bool receive(Event& event) override { return events_.pop(event); }
  void reject(int peer, std::string_view reason) override { events_.push({Event::Kind::kLost, peer, {}, reason}); }
  void close(double /*linger*/) override { events_.close(); }
  bool moves(std::string_view device_type) const override { return device_type == "cuda"; }
  void set_allocator(DeviceAllocator allocate) override { allocate_ = std::move(allocate); }
  Metrics metrics() const override { return {{kLong, std::to_string(42)}, {kShort, kLong}}; }

  std::string learnt;

 private:
  EventQueue events_;
  DeviceAllocator allocate_;
};

class NewInterceptor final : public Interceptor {
 public:
  struct Seen final : Observer {
    explicit Seen(NewInterceptor& owner) : owner(owner) {}
    void on_answer(AnswerPtr answer) override { answer->fail("replaces " + std::string(answer->error())); }
    void on_end(const End& end) override { owner.ended = std::string(end.text); }
    NewInterceptor& owner;
  };

  void on_start(const AgentInfo& agent) override { started = std::string(agent.worker); }
  void on_request(RequestPtr request) override {
    const RequestHead& head = request->head();
    request->observe(std::make_shared<Seen>(*this));
    try {
      head.tensor_bytes();
    } catch (const std::logic_error& error) {
      misuse = error.what();
    }
    request->fail(std::string(head.worker()) + " refuses " + std::string(head.function()) + " of " +
                  std::string(head.peer()) + " " + std::to_string(head.wrappers().at(0)));
  }

  std::string started, ended, misuse;
};

TEST(LayoutsTest, TextsReachATransportAndComeBack) {
  NewTransport transport;
  for (const char* text : {kLong, kShort, ""}) {
    EXPECT_EQ(old_strings::listen(transport, text), "address of " + std::string(text));
    EXPECT_EQ(old_strings::reason_after_reject(transport, text), text);
    old_strings::learn(transport, text, kLong);
    EXPECT_EQ(transport.learnt, std::string(text) + " at " + kLong);
  }
  EXPECT_TRUE(old_strings::moves(transport, "cuda"));
  EXPECT_FALSE(old_strings::moves(transport, kLong));
}

TEST(LayoutsTest, MetricsOfATransportKeepTheirNamesAndValues) {
  NewTransport transport;
  EXPECT_EQ(old_strings::metric(transport, kLong), "42");
  EXPECT_EQ(old_strings::metric(transport, kShort), kLong);
}

TEST(LayoutsTest, ExceptionsPassThroughATransportInBothDirections) {
  NewTransport transport;
  old_strings::fail_allocations(transport, kLong);
  EXPECT_EQ(old_strings::error_of_send(transport), "no memory for worker 1: " + std::string(kLong));
}

TEST(LayoutsTest, AnInterceptorReadsTheHeadOfARequestAndRefusesIt) {
  NewInterceptor interceptor;
  EXPECT_EQ(old_strings::why_refused(interceptor, kShort, kLong, "f"),
            "short refuses f of " + std::string(kLong) + " 271");
  EXPECT_EQ(interceptor.started, kShort);
  EXPECT_EQ(interceptor.misuse, "it was passed on");
}

TEST(LayoutsTest, AnObserverReadsAndReplacesTheErrorOfACall) {
  NewInterceptor interceptor;
  EXPECT_EQ(old_strings::why_replaced(interceptor, kLong), "replaces " + std::string(kLong));
  EXPECT_EQ(interceptor.ended, kLong);
}

}  // namespace
}  // namespace rpc_backends
