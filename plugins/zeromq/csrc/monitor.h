// What happens to the connections of a socket, as libzmq tells of it.
#pragma once

#include <string>

#include "socket.h"

namespace rpc_backends::zeromq {

class Monitor {
 public:
  // `name` is no other monitor's in this context. To be made before `socket` has anything to tell:
  // libzmq's thread would wait for somebody to listen. To be kept until Socket::end_monitor(), for the same
  // reason.
  Monitor(Context& context, Socket& socket, const std::string& name, int events);

  int fd() { return listener_.fd(); }

  // One of monitor_event, with the number that comes with it.
  struct SocketEvent {
    int event = 0;
    int value = 0;
    std::string endpoint;
  };

  // Takes the next that has happened; false if there is none.
  bool next(SocketEvent& socket_event);

 private:
  Socket listener_;
};

// Why a handshake failed, for kHandshakeFailed, kHandshakeFailedProtocol and kHandshakeFailedAuth.
std::string failure_text(const Monitor::SocketEvent& socket_event);

}  // namespace rpc_backends::zeromq
