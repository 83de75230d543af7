// Who is let in, as libzmq asks: by the ZAP protocol, on a socket of the same context.
#pragma once

#include <string>

#include "callback_thread.h"
#include "directory.h"
#include "event_loop.h"
#include "settings.h"
#include "socket.h"

namespace rpc_backends::zeromq {

// Answers on the event_loop's thread. A key that the directory does not have is a question to the callback_thread, and
// others are answered meanwhile.
class Zap {
 public:
  // The domain that sockets must have for libzmq to ask, also without encryption.
  static constexpr const char* kDomain = "rpc";

  // Throws TransportError. Nobody may connect to a socket of `context` before this is there.
  Zap(Context& context, EventLoop& event_loop, CallbackThread& callback_thread, Directory& directory, Counters& counters, bool encrypts);

  // The event_loop must be stopped.
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
