// The connection events of a socket, as libzmq's monitor reports them.
#pragma once

#include <string>

#include "socket.h"

namespace rpc_backends::zeromq {

class Monitor {
 public:
  // `name` must be unique in this context. Make the monitor before `socket` can have events, and keep it until
  // Socket::end_monitor(): without a reader libzmq's thread would block.
  Monitor(Context& context, Socket& socket, const std::string& name, int events);

  int fd() { return listener_.fd(); }

  // One of monitor_event, with its value.
  struct SocketEvent {
    int event = 0;
    int value = 0;
    std::string endpoint;
  };

  // Takes the next event; returns false if there is none.
  bool next(SocketEvent& socket_event);

 private:
  Socket listener_;
};

// Why a handshake failed, for kHandshakeFailed, kHandshakeFailedProtocol and kHandshakeFailedAuth.
std::string failure_text(const Monitor::SocketEvent& socket_event);

}  // namespace rpc_backends::zeromq
