// The interface of transports: a transport moves messages between the workers of a group for a TransportAgent.
//
// A transport knows peers by their worker ids, and a message as a list of parts. It does not depend on torch: this
// header needs only C++17. rpc_backends_agents.Transport is the same interface in Python.
//
// The agent calls the methods in this order: listen; learn, for each peer as soon as its address is known; send and
// receive, from many threads at the same time; forget, for a peer that has left; close. The reference page "Transport"
// says which calls may overlap, what an exception does, and what holds after close().
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "rpc_backends_agents/text.h"

namespace rpc_backends {

// An extension module passes its transport to the agent as an object with a method __rpc_transport__(). The method
// returns a capsule with this name that holds a std::shared_ptr<Transport>*. The number in the name increases with
// every incompatible change of this header.
inline constexpr const char* kTransportCapsule = "rpc_backends.Transport.4";

// The transport cannot do what was asked; the user sees the text, which is UTF-8.
class TransportError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Where memory is: the host, or a device of an accelerator.
struct Memory {
  // The type of the device by torch's name, for example "cuda"; null for the host. The text is never freed.
  const char* type = nullptr;
  int index = 0;

  bool is_host() const { return type == nullptr; }
};

// One part of a message: memory that stays valid and unchanged for as long as `owner` lives. The agent takes a part as
// sent when the transport has released `owner`.
struct Part {
  const void* data = nullptr;
  size_t size = 0;
  std::shared_ptr<void> owner;
  // Where `data` is. Not the host only if the transport says that it moves this type of device.
  Memory memory{};
  // In a part to be sent: where the receiver needs it. If this is not the host, the receiving transport asks its
  // allocator for memory there.
  Memory target{};
};

// Reserves memory of a device of this worker, for a part that arrives. The transport may write to it at once, without
// regard to streams, until it passes the part on in an event. Throws an exception if there is no such memory. May be
// called on any thread.
using DeviceAllocator = std::function<Part(Memory where, size_t size)>;

using Parts = std::vector<Part>;

// An event on a connection.
struct Event {
  enum class Kind {
    // `parts` have arrived from `peer`.
    kMessage,
    // The connection to `peer` is lost, with all messages on their way. Each call that waits for an answer from `peer`
    // fails with `reason`, a UTF-8 text. New calls to it fail at once, without send(), until kFound.
    kLost,
    // Calls to `peer` may be tried again: it is connected, or the next send() connects.
    kFound,
    // The reply `parts` to `peer`, passed to send() earlier, cannot be sent because of `reason`, although its
    // connection has not ended. For transports whose send() returns before that is known.
    kUnsent,
  };

  Kind kind = Kind::kMessage;
  int peer = -1;
  Parts parts;
  Text reason;
  // The number of this event among all events of the transport: 1, 2, 3... in the order in which receive() returns
  // them, without gaps. Several threads handle events, and a loss must not fail a call whose answer came earlier. So
  // the agent waits, up to a second, until all earlier events are noted. A loss with number 0 is handled at once.
  uint64_t order = 0;
};

class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  // Starts to listen as worker `self`; returns the address that peers pass to learn() to reach it: any UTF-8 text.
  virtual Text listen(int self, std::string_view name) = 0;

  // Stores a peer's address; throws TransportError if the text is not an address. The transport need not connect before
  // the first message.
  virtual void learn(int peer, std::string_view name, std::string_view address) = 0;

  // Drops the connections to a peer that has left; an unknown peer is ignored. May return before they have ended.
  virtual void forget(int peer) = 0;

  // Queues a message and returns without waiting for the peer. Each message must arrive exactly once and in order, or
  // the peer must be reported as lost. Throws TransportError if the peer is unknown or lost, or after close(): the call
  // then fails with the text.
  //
  // `reply`: the message answers a message from `peer`. It must use the connection on which that message arrived: if
  // the reply cannot arrive, the waiting caller then sees its connection end.
  virtual void send(int peer, Parts parts, bool reply) = 0;

  // Waits for the next event and moves it into `event`; returns false once the transport is closed. Called by many
  // threads at the same time; each event goes to one of them. The requests of a peer are returned in the order in which
  // they were sent, and so are its replies. Its loss comes after them.
  virtual bool receive(Event& event) = 0;

  // Closes the connections to a peer that sent an invalid message or cannot be answered. The peer may connect again.
  virtual void reject(int peer, std::string_view reason) = 0;

  // Stops listening, waits up to `linger` seconds until queued messages have left, closes all connections, and makes
  // every receive() return false. A second call does nothing. Must not throw.
  virtual void close(double linger) = 0;

  // Whether the transport moves memory of this type of device ("cuda") itself, both when it sends and when it receives.
  // Parts of other types arrive in send() as host memory. Called at any time; must not wait.
  virtual bool moves(std::string_view /*device_type*/) const { return false; }

  // Called once before listen().
  virtual void set_allocator(DeviceAllocator /*allocate*/) {}

  // Values for the agent's metrics. Called at any time after listen(), also after close(); must not wait.
  virtual Metrics metrics() const { return {}; }
};

// How an attempt to receive an event until a deadline has ended.
enum class Received { kEvent, kTimeout, kClosed };

// A queue that implements receive() for a transport with its own threads. push() does not wait and calls nothing, so it
// may be called with a lock held. After close(), it drops the event.
class EventQueue {
 public:
  using Clock = std::chrono::steady_clock;

  void push(Event event) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (closed_) {
        return;
      }
      events_.push_back(std::move(event));
      events_.back().order = ++pushed_;  // only if it was added: there must be no gap
    }
    ready_.notify_one();
  }

  bool pop(Event& event) { return pop(event, Clock::time_point::max()) == Received::kEvent; }

  Received pop(Event& event, Clock::time_point deadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto is_ready = [this] { return closed_ || !events_.empty(); };
    if (deadline == Clock::time_point::max()) {
      ready_.wait(lock, is_ready);
    } else if (!ready_.wait_until(lock, deadline, is_ready)) {
      return Received::kTimeout;
    }
    if (closed_) {
      return Received::kClosed;
    }
    event = std::move(events_.front());
    events_.pop_front();
    return Received::kEvent;
  }

  void close() {
    for (bool is_empty = false; !is_empty;) {
      Event dropped;  // destroyed without the lock, because that may have to wait for Python
      std::lock_guard<std::mutex> lock(mutex_);
      closed_ = true;
      is_empty = events_.empty();
      if (!is_empty) {
        dropped = std::move(events_.front());
        events_.pop_front();
      }
    }
    ready_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Event> events_;
  uint64_t pushed_ = 0;
  bool closed_ = false;
};

}  // namespace rpc_backends
