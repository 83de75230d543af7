// A transport that is written in Python, and what it is given and gives: parts and an inbox.
#pragma once

#include <pybind11/pybind11.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

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
// that sends never takes the GIL here: one thread does that for all of them.
class PythonTransport : public Transport {
 public:
  explicit PythonTransport(pybind11::object transport);
  ~PythonTransport() override;

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
    int peer = -1;
    Parts parts;
    bool reply = false;
  };

  void send_all();
  void send_one(Outgoing outgoing);

  pybind11::object transport_;
  std::shared_ptr<EventQueue> events_ = std::make_shared<EventQueue>();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Outgoing> outgoing_;
  bool sending_ = false;
  bool closed_ = false;
  std::thread sender_;
};

// The transport that a Python object is or holds: one in C++ by its capsule, or else one in Python.
std::shared_ptr<Transport> take_transport(const pybind11::object& transport);

void bind_transports(pybind11::module_& module);

}  // namespace rpc_backends
