// The agent without torch's interface: it starts and stops the parts of the agent, handles lost peers, and counts.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "agent/agent_state.h"
#include "agent/event_order.h"
#include "agent/message_receiver.h"
#include "agent/message_sender.h"
#include "agent/outgoing_calls.h"
#include "agent/request_server.h"

namespace rpc_backends {

class TransportAgent::Core : public AgentState {
 public:
  Core(const std::string& name, int id, std::shared_ptr<Transport> transport, const AgentOptions& options);

  void start();
  void stop();

  void forget(int peer, const std::string& reason);

  // Waits until this worker has no active calls and runs no requests; returns false after `seconds`. A request whose
  // function has returned a future does not count: if its caller waits for it, the call is active there.
  bool wait_until_idle(double seconds);
  // The same, and waits for such futures whose callers are other workers that have neither left nor been lost, and may
  // wait. They never make the result false: a future may never get a value. While this waits, it calls `ask`, at once
  // and then every `interval` seconds.
  bool wait_until_finished(double seconds, double interval, const std::function<void()>& ask);
  // See TransportAgent.
  std::vector<int> callers_of_futures() const { return activity.callers_of_pending(); }
  void note_not_waiting(int caller) { activity.note_not_waiting(caller); }
  size_t calls_to(int peer) const { return calls_.waiting().waiting(peer); }
  Traffic traffic() const;
  std::unordered_map<std::string, std::string> metrics() const;
  std::unordered_map<std::string, std::string> debug_info() const;
  std::unordered_map<std::string, std::string> gil_metrics() const;
  void add_gil_wait(std::chrono::microseconds wait);

  // Only before start().
  void on_lost(std::function<void(int, const std::string&)> tell) { tell_lost_ = std::move(tell); }
  // Gives the transport its allocator; before it listens.
  void set_allocator() { receiver_.set_allocator(); }

  OutgoingCalls& calls() { return calls_; }

 private:
  void handle(Event& event);
  // `order`: the number of the event.
  void lose(int peer, std::string_view why, uint64_t order, EventOrder::Handling& event);
  bool is_idle() const;
  // Whether a worker that can be reached may wait for the value of a future that a function has returned.
  bool has_awaited_futures() const;

  MessageSender sender_;
  OutgoingCalls calls_;
  RequestServer server_;
  MessageReceiver receiver_;
  EventOrder order_;
  std::function<void(int, const std::string&)> tell_lost_;
  std::atomic<uint64_t> gil_waits_{0}, gil_wait_us_{0};
};

}  // namespace rpc_backends
