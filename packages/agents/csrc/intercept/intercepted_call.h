// One request on its way through the interceptors, and its answer on the way back.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "intercept/interceptor_chain.h"
#include "rpc/futures.h"
#include "wire/frame.h"

namespace rpc_backends {

using JitFuture = torch::distributed::rpc::JitFuture;
using MessagePtr = c10::intrusive_ptr<torch::distributed::rpc::Message>;

// The view of a message that interceptors get.
class MessageHead;
// A request at one interceptor; its answer passes the same interceptor on the way back.
class PassingRequest;
using PassingRequestPtr = std::shared_ptr<PassingRequest>;

// In either direction, the request starts at one end of the chain, and its answer comes back to that end.
class InterceptedCall : public std::enable_shared_from_this<InterceptedCall> {
 public:
  InterceptedCall(std::shared_ptr<InterceptorChain> chain, Direction direction, int peer_id,
                  std::chrono::milliseconds timeout, Contexts arrived);
  virtual ~InterceptedCall();

  // Passes the request to the interceptors, starting with the first.
  void begin(MessagePtr message);
  bool is_over() const { return over_; }
  // Seconds until the timeout; empty if there is no timeout.
  std::optional<double> seconds_left() const;
  // End the call, unless it has ended: after a timeout, or because the agent shuts down.
  void run_out();
  void shut_down();

 protected:
  friend class PassingRequest;
  friend class PassingAnswer;
  friend class Decision;
  friend class MessageHead;

  // Sends the request after the last interceptor; the result goes to come_back() with `last`.
  virtual void transmit(MessagePtr message, const Contexts& contexts, const PassingRequestPtr& last) = 0;
  // Delivers the answer to the caller; null if the request is not answered.
  virtual void finish(JitFuture* answer) = 0;
  virtual const std::string& peer() const = 0;

  // Passes an answer to the interceptors that the request has passed, from `last` back to the first.
  void come_back(PassingRequestPtr last, FuturePtr answer);
  // Whether any interceptor that the request has passed wants to see its answers.
  static bool wants_answers(const PassingRequest* last);
  // For a request that wants no answers: makes observers see the end of the call.
  void observe_end(JitFuture& answer);

  const std::shared_ptr<InterceptorChain> chain_;
  const Direction direction_;
  const int peer_id_;
  const std::chrono::milliseconds timeout_;  // 0 means no timeout
  std::atomic<bool> repeated_{false};

 private:
  struct Observing {
    std::shared_ptr<Observer> observer;
    Observing* next = nullptr;
  };

  void advance(size_t position, const std::shared_ptr<MessageHead>& message, const PassingRequestPtr& from);
  void add_observer(const std::shared_ptr<Observer>& observer);
  // Makes the chain end this call after its timeout, because an interceptor holds or has dropped the message.
  void keep();
  void drop();
  void end(End::Kind kind, JitFuture* answer);
  void tell_observers(End::Kind kind, JitFuture* answer);

  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  const Contexts arrived_;
  std::atomic<bool> over_{false};
  std::atomic<bool> kept_{false};
  std::atomic<Observing*> observing_{nullptr};
};

// Returns a future that has completed with an error.
FuturePtr failed(std::exception_ptr error);

}  // namespace rpc_backends
