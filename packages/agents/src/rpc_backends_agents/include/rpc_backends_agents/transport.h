// What moves messages between the workers of a group, as TransportAgent uses it.
//
// A transport knows peers by their worker id and messages as a list of parts. It knows nothing of torch:
// this header needs C++17 and nothing else. rpc_backends_agents.Transport is the same in Python.
//
// The agent calls it in this order: listen; learn, for each peer whose address is known, then or later;
// send and receive, from many threads at once; forget, for a peer that has left; close.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace rpc_backends {

// An extension module hands its transport to the agent as a capsule of this name that holds a
// std::shared_ptr<Transport>*; see take_transport() in the guide. The number goes up with every change
// of this header that old code would not survive.
inline constexpr const char* kTransportCapsule = "rpc_backends.Transport.2";

// The transport cannot do what was asked; the text is for the user.
class TransportError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// One part of a message: memory that stays valid and unchanged for as long as `owner` lives.
struct Part {
  const void* data = nullptr;
  size_t size = 0;
  std::shared_ptr<void> owner;
};

using Parts = std::vector<Part>;

// Something that has happened on a connection.
struct Event {
  enum class Kind {
    // `parts` have arrived from `peer`.
    kMessage,
    // The connection to `peer` is gone, and with it any message that was on its way: each call that
    // waits for an answer from `peer` fails with `reason`, and later ones do at once, until...
    kLost,
    // ...there is a connection to `peer` again.
    kFound,
    // `parts`, which were given to send() as a reply to `peer`, cannot be sent, for `reason`. For a transport whose
    // send() returns before it knows.
    kUnsent,
  };

  Kind kind = Kind::kMessage;
  int peer = -1;
  Parts parts;
  std::string reason;
  // The place of this event among all of the transport: 1, 2, 3..., none left out, as receive() gives them out.
  // Several threads handle events, and a loss must not fail a call whose answer came before it: the agent waits,
  // up to a second, until all earlier events are noted. 0: the agent takes the event for the last so far.
  uint64_t order = 0;
};

class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  // Begins to listen as worker `self`, and returns the address by which peers learn() of it: any text.
  virtual std::string listen(int self, const std::string& name) = 0;

  // Takes note of a peer; throws TransportError if its address cannot be believed. Nothing needs to be
  // connected until the first message.
  virtual void learn(int peer, const std::string& name, const std::string& address) = 0;

  // Drops the connections with a peer that has left. A peer that is not known does no harm.
  virtual void forget(int peer) = 0;

  // Takes a message to be sent, and returns without waiting for the peer. Messages to one peer arrive
  // once each and in order, or the peer is reported as lost. Throws TransportError if the peer is not
  // known or is lost.
  //
  // `reply`: it answers a message from `peer`, and goes back by the connection on which that came, so
  // that who waits for it sees the connection end if it cannot arrive.
  virtual void send(int peer, Parts parts, bool reply) = 0;

  // Waits for the next event and moves it into `event`; returns false once the transport is closed. Many
  // threads are in here at once, and each has one event. Events of one peer need not be given out in
  // order.
  virtual bool receive(Event& event) = 0;

  // Ends the connections with a peer that has sent what is no message, or cannot be answered.
  virtual void reject(int peer, const std::string& reason) = 0;

  // Stops listening, gives what was sent `linger` seconds to leave, ends all connections, and has
  // receive() return false everywhere. A second call does nothing.
  virtual void close(double linger) = 0;

  // What is worth knowing about it, for the agent's metrics.
  virtual std::map<std::string, std::string> metrics() const { return {}; }
};

// receive() for a transport that has threads of its own.
class EventQueue {
 public:
  void push(Event event) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (closed_) {
        return;
      }
      event.order = ++pushed_;
      events_.push_back(std::move(event));
    }
    ready_.notify_one();
  }

  bool pop(Event& event) {
    std::unique_lock<std::mutex> lock(mutex_);
    ready_.wait(lock, [this] { return closed_ || !events_.empty(); });
    if (closed_) {
      return false;
    }
    event = std::move(events_.front());
    events_.pop_front();
    return true;
  }

  void close() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      closed_ = true;
      events_.clear();
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
