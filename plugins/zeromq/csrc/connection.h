// A connection to a peer: our requests leave by it, and their answers come by it.
//
// It connects once, and what is queued on it goes when it does. So a message that was reported as lost is
// never delivered later; whoever wants to try again makes another connection.
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
  // What a connection is told to tell; on the event_loop's thread.
  struct Listener {
    virtual ~Listener() = default;
    virtual void on_up(const std::shared_ptr<Connection>& connection) = 0;
    // Nothing comes by the connection any more.
    virtual void on_end(const std::shared_ptr<Connection>& connection, const std::string& reason) = 0;
  };

  Connection(Listener& listener, int peer, Endpoint endpoint)
      : listener_(listener), peer_(peer), endpoint_(std::move(endpoint)) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  virtual ~Connection() = default;

  // Returns false if the connection has ended. Throws TransportError if there is too much of the message.
  virtual bool send(Parts parts) = 0;

  // Reads what has arrived, and closes. What was sent has `linger` seconds to leave.
  virtual void close(double linger) = 0;

  // Ends it for what came by it; the listener is told.
  virtual void end(const std::string& reason) = 0;

  int peer() const { return peer_; }
  const Endpoint& endpoint() const { return endpoint_; }

  Clock::time_point up_since() const { return up_since_; }

 protected:
  Listener& listener_;
  const int peer_;
  const Endpoint endpoint_;

  // Of the event_loop's thread.
  Clock::time_point up_since_;
  bool ended_ = false;
};

}  // namespace rpc_backends::zeromq
