// A connection to a peer. It carries this worker's requests and the peer's replies.
//
// It connects once, and sends queued messages as soon as it is connected. A message that was reported as lost is
// therefore never delivered later. To try again, make another connection.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "endpoint.h"
#include "inbox.h"

namespace rpc_backends::zeromq {

class Connection {
 public:
  // Receives the connection's events, on the event loop's thread.
  struct Listener {
    virtual ~Listener() = default;
    virtual void on_up(const std::shared_ptr<Connection>& connection) = 0;
    // No more data arrives on the connection.
    virtual void on_end(const std::shared_ptr<Connection>& connection, const std::string& reason) = 0;
  };

  Connection(Listener& listener, int peer, Endpoint endpoint)
      : listener_(listener), peer_(peer), endpoint_(std::move(endpoint)) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  virtual ~Connection() = default;

  // Returns false if the connection has ended. Throws TransportError if the message is too large.
  virtual bool send(Parts parts) = 0;

  // Waits until the handshake has ended, if messages are queued behind it; at most until `deadline`.
  virtual void wait_until_open(Clock::time_point /*deadline*/) {}

  // Reads what has arrived, and closes. Queued messages have `linger` seconds to be sent.
  virtual void close(double linger) = 0;

  // Ends the connection because of data that arrived on it, and notifies the listener.
  virtual void end(const std::string& reason) = 0;

  int peer() const { return peer_; }
  const Endpoint& endpoint() const { return endpoint_; }

  Clock::time_point up_since() const { return up_since_; }

 protected:
  Listener& listener_;
  const int peer_;
  const Endpoint endpoint_;

  // Used only on the event loop's thread.
  Clock::time_point up_since_;
  bool ended_ = false;
};

}  // namespace rpc_backends::zeromq
