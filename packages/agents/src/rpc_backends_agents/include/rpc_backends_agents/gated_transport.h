// What every engine's transport does around the work: it admits calls until close(), refuses them in a forked process,
// and closes once, when no call is in progress any more.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "rpc_backends_agents/forks.h"
#include "rpc_backends_agents/gate.h"
#include "rpc_backends_agents/transport.h"

namespace rpc_backends {

class GatedTransport : public Transport {
 public:
  using Clock = std::chrono::steady_clock;

  // The part that moves messages. Its methods are called only between the end of the constructor and close().
  class Engine {
   public:
    Engine() = default;
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;
    virtual ~Engine() = default;

    // As in Transport.
    virtual void forget(int peer) = 0;
    virtual void send(int peer, Parts parts, bool reply) = 0;
    virtual void reject(int peer, std::string_view reason) = 0;
    virtual Received receive(Event& event, Clock::time_point deadline) = 0;

    // Makes every receive() return kClosed, on all threads.
    virtual void stop_receiving() = 0;
    // Called after stop_receiving(), when no other call is in progress: as in Transport.
    virtual void close(double linger) = 0;

    // As in Transport, but only between listen() and close().
    virtual Metrics metrics() const { return {}; }
  };

  void forget(int peer) override {
    if (const Admission admission(*this); admission) {
      engine_->forget(peer);
    }
  }

  void send(int peer, Parts parts, bool reply) override {
    const Use use(*this);
    engine_->send(peer, std::move(parts), reply);
  }

  void reject(int peer, std::string_view reason) override {
    if (const Admission admission(*this); admission) {
      engine_->reject(peer, reason);
    }
  }

  Metrics metrics() const override {
    const Admission admission(*this);
    return admission ? engine_->metrics() : Metrics();
  }

  bool receive(Event& event) override { return receive_until(event, Clock::time_point::max()) == Received::kEvent; }

  Received receive_until(Event& event, Clock::time_point deadline) {
    const Admission admission(*this);
    return admission ? engine_->receive(event, deadline) : Received::kClosed;
  }

  void close(double linger) override {
    if (birthplace_.is_elsewhere()) {
      engine_.release();  // NOLINT(bugprone-unused-return-value): its threads and locks belong to the parent process
      return;
    }
    // Destroyed without the lock, because objects that the callbacks hold may call close() too.
    std::unique_ptr<Engine> closed;
    const std::lock_guard<std::mutex> lock(close_mutex_);
    if (!engine_) {
      return;
    }
    gate_.close();
    engine_->stop_receiving();
    gate_.wait_until_empty();
    engine_->close(linger);
    closed = std::move(engine_);
  }

 protected:
  // A call that does nothing once the transport is closed, or in a forked process: then this is false.
  class Admission {
   public:
    explicit Admission(const GatedTransport& transport) : transport_(transport), pass_(transport.gate_) {}

    explicit operator bool() const { return pass_ && !transport_.birthplace_.is_elsewhere(); }

   private:
    const GatedTransport& transport_;
    const Gate::Pass pass_;
  };

  // A call that throws TransportError once the transport is closed, or in a forked process.
  class Use {
   public:
    explicit Use(const GatedTransport& transport) : pass_(transport.gate_) {
      if (transport.birthplace_.is_elsewhere()) {
        throw TransportError("the transport belongs to the process that this one was forked from");
      }
      if (transport.gate_.is_closed()) {
        throw TransportError("the transport is closed");
      }
    }

   private:
    const Gate::Pass pass_;
  };

  // The subclass sets it in its constructor, and calls close(0) in its destructor.
  void set_engine(std::unique_ptr<Engine> engine) { engine_ = std::move(engine); }

  // Use it while an Admission or a Use lives.
  Engine& engine() const { return *engine_; }

 private:
  const Birthplace birthplace_;
  mutable Gate gate_;
  std::mutex close_mutex_;
  std::unique_ptr<Engine> engine_;  // null once it is closed
};

// The transport of an engine; the Python around it listens and learns addresses through methods of the engine.
template <typename Moving>
class EngineTransport : public GatedTransport {
 public:
  // The arguments are those of the engine.
  template <typename... Arguments>
  explicit EngineTransport(Arguments&&... arguments) {
    set_engine(std::make_unique<Moving>(std::forward<Arguments>(arguments)...));
  }
  ~EngineTransport() override { close(0); }

  // Calls a method of the engine. Throws TransportError once the transport is closed, or in a forked process.
  template <typename Result, typename... Parameters, typename... Arguments>
  Result call(Result (Moving::*method)(Parameters...), Arguments&&... arguments) {
    const Use use(*this);
    return (static_cast<Moving&>(engine()).*method)(std::forward<Arguments>(arguments)...);
  }

  Text listen(int /*self*/, std::string_view /*name*/) override { throw TransportError(kOnlyFromPython); }
  void learn(int /*peer*/, std::string_view /*name*/, std::string_view /*address*/) override {
    throw TransportError(kOnlyFromPython);
  }

 private:
  static constexpr const char* kOnlyFromPython = "call the methods of the Python around this transport";
};

}  // namespace rpc_backends
