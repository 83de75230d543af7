#include "monitor.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace rpc_backends::zeromq {

Monitor::Monitor(Context& context, Socket& socket, const std::string& name, int events)
    : listener_(context, socket_type::kPair) {
  const std::string endpoint = "inproc://" + name;
  if (!socket.monitor(endpoint, events) || !listener_.connect(endpoint)) {
    throw TransportError("ZeroMQ cannot watch a connection: " + text_of(errno));
  }
  // libzmq signals only a reader that has found the socket empty.
  Frame nothing;
  listener_.receive(nothing);
}

bool Monitor::next(SocketEvent& socket_event) {
  Frame what, where;
  if (!listener_.receive(what)) {
    return false;
  }
  // All frames of libzmq's own message arrive together.
  while (what.more() && listener_.receive(where) && where.more()) {
  }
  uint16_t event = 0;
  int32_t value = 0;
  if (what.size() == sizeof event + sizeof value) {
    std::memcpy(&event, what.data(), sizeof event);
    std::memcpy(&value, what.data() + sizeof event, sizeof value);
  }
  socket_event = {event, value, std::string(where.data(), where.size())};
  return true;
}

std::string failure_text(const Monitor::SocketEvent& socket_event) {
  if (socket_event.event == monitor_event::kHandshakeFailedAuth) {
    return "the connecting process used an unknown key";
  }
  if (socket_event.event == monitor_event::kHandshakeFailed) {
    return "the connection ended during the handshake";
  }
  switch (socket_event.value) {
    case protocol_error::kCryptographic:
      return "a key is not the one that the other side expects";
    case protocol_error::kMechanismMismatch:
      return "one side encrypts and the other does not";
    default:
      break;
  }
  char text[48];
  std::snprintf(text, sizeof text, "protocol error 0x%08x", static_cast<unsigned>(socket_event.value));
  return text;
}

}  // namespace rpc_backends::zeromq
