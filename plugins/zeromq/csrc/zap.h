// The authentication handler that libzmq asks about new connections: the ZAP protocol, on a socket in the same
// context.
#pragma once

#include <string>

#include "directory.h"
#include "event_loop.h"
#include "rpc_backends_agents/callback_thread.h"
#include "settings.h"
#include "socket.h"

namespace rpc_backends::zeromq {

// Answers on the event loop's thread. Keys that the directory does not have are looked up on the callback thread,
// and other requests are answered meanwhile.
class Zap {
 public:
  // Sockets must have this domain so that libzmq asks, even without encryption.
  static constexpr const char* kDomain = "rpc";

  // Throws TransportError. Make it before any process can connect to a socket of `context`.
  Zap(Context& context, EventLoop& event_loop, CallbackThread& callback_thread, Directory& directory,
      Counters& counters, bool encrypts);

  // Stop the event loop first.
  ~Zap() = default;

 private:
  struct Request;

  void answer_all();
  bool take(Request& request);
  void decide(const Request& request);
  void admit(const Request& request, const std::string& user);
  void refuse(const Request& request, const std::string& why);
  void reply(const Request& request, const std::string& status, const std::string& text, const std::string& user);

  EventLoop& event_loop_;
  CallbackThread& callback_thread_;
  Directory& directory_;
  Counters& counters_;
  const bool encrypts_;
  Socket socket_;
};

}  // namespace rpc_backends::zeromq
