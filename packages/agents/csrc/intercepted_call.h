// One request on its way through the interceptors, and its answer on the way back.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "calls.h"
#include "frame.h"
#include "interceptor_chain.h"

namespace rpc_backends {

using JitFuture = torch::distributed::rpc::JitFuture;
using MessagePtr = c10::intrusive_ptr<torch::distributed::rpc::Message>;

// What interceptors are shown of a message.
class MessageHead;
// A request as one interceptor has it, and where its answer comes by on the way back.
class PassingRequest;
using PassingRequestPtr = std::shared_ptr<PassingRequest>;

// Whatever the direction, the request begins at one end of the chain and its answer comes back there.
class InterceptedCall : public std::enable_shared_from_this<InterceptedCall> {
 public:
  InterceptedCall(std::shared_ptr<InterceptorChain> chain, Direction direction, int peer_id,
                  std::chrono::milliseconds timeout, Contexts arrived);
  virtual ~InterceptedCall();

  // Shows the request to the interceptors from the first on.
  void begin(MessagePtr message);
  bool is_over() const { return over_; }
  // Until the time runs out; none if it never does.
  std::optional<double> seconds_left() const;
  // End it, unless it is over.
  void run_out();
  void shut_down();

 protected:
  friend class PassingRequest;
  friend class PassingAnswer;
  friend class Decision;
  friend class MessageHead;

  // Sends the request on beyond the last interceptor; whatever comes of it goes to come_back() with `last`.
  virtual void transmit(MessagePtr message, const Contexts& contexts, const PassingRequestPtr& last) = 0;
  // Gives the answer to whoever waits for it; none if nothing is to be answered.
  virtual void finish(JitFuture* answer) = 0;
  virtual const std::string& peer() const = 0;

  // Shows an answer to those that the request has passed, from `last` on to the first.
  void come_back(PassingRequestPtr last, FuturePtr answer);
  // Whether any that the request has passed observes the call.
  static bool is_observed(const PassingRequest* last);

  const std::shared_ptr<InterceptorChain> chain_;
  const Direction direction_;
  const int peer_id_;
  const std::chrono::milliseconds timeout_;  // 0 is never
  std::atomic<bool> repeated_{false};

 private:
  struct Observing {
    std::shared_ptr<Observer> observer;
    Observing* next = nullptr;
  };

  void advance(size_t position, const std::shared_ptr<MessageHead>& message, const PassingRequestPtr& from);
  void add_observer(const std::shared_ptr<Observer>& observer);
  // It is held here, or dropped: nobody else ends it if its time runs out.
  void keep();
  void drop();
  void end(End::Kind kind, JitFuture* answer);

  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  const Contexts arrived_;
  std::atomic<bool> over_{false};
  std::atomic<bool> kept_{false};
  std::atomic<Observing*> observing_{nullptr};
};

// An error as a completed future.
FuturePtr failed(std::exception_ptr error);

}  // namespace rpc_backends
