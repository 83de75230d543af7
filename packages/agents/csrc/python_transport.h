// A transport that is written in Python, and what it is given and gives: parts and an inbox.
#pragma once

#include <pybind11/pybind11.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "rpc_backends_agents/transport.h"

namespace rpc_backends {

// Where a Python transport puts what has happened; it holds no more than the queue.
class Inbox {
 public:
  explicit Inbox(std::shared_ptr<EventQueue> events) : events_(std::move(events)) {}

  void deliver(int peer, const pybind11::iterable& parts);
  void lost(int peer, const std::string& reason);
  void found(int peer);

 private:
  std::shared_ptr<EventQueue> events_;
};

// Torch sends while it holds locks of its own, and other threads wait for these with the GIL. So a thread
// that sends never takes the GIL here: other threads do that for it, one for each peer, since a peer that takes
// nothing may hold up whoever sends to it. They end when they have had nothing to do for a while.
class PythonTransport : public Transport {
 public:
  explicit PythonTransport(pybind11::object transport);

  std::string listen(int self, const std::string& name) override;
  void learn(int peer, const std::string& name, const std::string& address) override;
  void forget(int peer) override;
  void send(int peer, Parts parts, bool reply) override;
  bool receive(Event& event) override { return events_->pop(event); }
  void reject(int peer, const std::string& reason) override;
  void close(double linger) override;
  std::map<std::string, std::string> metrics() const override;

 private:
  struct Outgoing {
    Parts parts;
    bool reply = false;
  };

  // What the threads share; it outlives the transport if one of them does not end.
  struct Senders {
    explicit Senders(pybind11::object transport) : transport(std::move(transport)) {}
    ~Senders();

    pybind11::object transport;
    const std::shared_ptr<EventQueue> events = std::make_shared<EventQueue>();
    std::mutex mutex;
    std::condition_variable changed;
    std::unordered_map<int, std::deque<Outgoing>> queues;  // of each peer that has a thread
    size_t threads = 0;
    size_t sending = 0;
    bool closed = false;
  };

  static void send_all(const std::shared_ptr<Senders>& all, int peer);
  static void send_one(Senders& all, int peer, const Outgoing& outgoing);

  const std::shared_ptr<Senders> senders_;
  pybind11::object& transport_ = senders_->transport;
  const std::shared_ptr<EventQueue>& events_ = senders_->events;
};

// The transport that a Python object is or holds: one in C++ by its capsule, or else one in Python.
std::shared_ptr<Transport> take_transport(const pybind11::object& transport);

void bind_transports(pybind11::module_& module);

}  // namespace rpc_backends
