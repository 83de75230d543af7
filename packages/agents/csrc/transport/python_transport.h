// Adapts a transport written in Python; also the Python types that it uses, Part and Inbox.
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

// Receives the events of a Python transport; it only has a reference to the queue.
class Inbox {
 public:
  explicit Inbox(std::shared_ptr<EventQueue> events) : events_(std::move(events)) {}

  void deliver(int peer, const pybind11::iterable& parts);
  void lost(int peer, const std::string& reason);
  void found(int peer);

 private:
  std::shared_ptr<EventQueue> events_;
};

// Torch calls send() while it holds its own locks, and other threads wait for these locks with the GIL. So send() never
// takes the GIL: separate threads call Python. There is one such thread per peer, because a peer that reads nothing may
// block it. These threads end when they are idle for a while.
class PythonTransport : public Transport {
 public:
  explicit PythonTransport(pybind11::object transport);

  Text listen(int self, std::string_view name) override;
  void learn(int peer, std::string_view name, std::string_view address) override;
  void forget(int peer) override;
  void send(int peer, Parts parts, bool reply) override;
  bool receive(Event& event) override { return events_->pop(event); }
  void reject(int peer, std::string_view reason) override;
  void close(double linger) override;
  Metrics metrics() const override;

 private:
  struct Outgoing {
    Parts parts;
    bool reply = false;
  };

  // The state that the threads share; it outlives the transport if a thread does not end.
  struct Senders {
    explicit Senders(pybind11::object transport) : transport(std::move(transport)) {}
    ~Senders();

    pybind11::object transport;
    const std::shared_ptr<EventQueue> events = std::make_shared<EventQueue>();
    std::mutex mutex;
    std::condition_variable changed;
    std::unordered_map<int, std::deque<Outgoing>> queues;  // by peer; each peer here has a thread
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

// Returns the transport of a Python object: the C++ transport in its capsule, or else an adapter for the object.
std::shared_ptr<Transport> take_transport(const pybind11::object& transport);

void bind_transports(pybind11::module_& module);

}  // namespace rpc_backends
