// A ZeroMQ socket and the context it is in, and nothing of what they are used for.
#pragma once

#include <cstdint>
#include <string>

#include "frame.h"
#include "settings.h"

namespace rpc_backends::zeromq {

class Context {
 public:
  // Throws TransportError, and not libzmq's abort(), where the process has too many files open.
  explicit Context(int io_threads);

  // Waits until all sockets are gone, and those that linger have sent what they had.
  ~Context();

  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  void* raw() const { return context_; }

 private:
  void* context_;
};

// For one thread at a time.
class Socket {
 public:
  // Without limits on what is queued, and with nothing sent after close() unless linger() says so.
  Socket(Context& context, int type);
  ~Socket();

  Socket(Socket&& other) noexcept : socket_(other.socket_) { other.socket_ = nullptr; }
  Socket& operator=(Socket&&) = delete;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  void set(int option, int value);
  void set(int option, int64_t value);
  void set(int option, const std::string& value);

  // Has each connection end when its other side gives no sign of life for settings.heartbeat_timeout.
  void watch_for_silence(const Settings& settings);

  // Return false with errno set if they cannot. bind() throws TransportError if too many files are open.
  bool bind(const std::string& endpoint);
  bool connect(const std::string& endpoint);
  bool monitor(const std::string& endpoint, int events);

  // Has nothing more told to who monitors.
  void end_monitor();

  std::string last_endpoint();

  // Readable when something may have happened to the socket since it was last used, by any of its
  // functions: whoever uses it must look for messages before it waits for this again.
  int fd();

  // Never wait. Return false with errno EAGAIN if there is nothing, or no room.
  bool receive(Frame& frame);
  bool send(Frame& frame, bool more);

  // Seconds for which what was sent may leave after the socket is closed.
  void linger(double seconds);

 private:
  void set(int option, const void* value, size_t size);

  void* socket_;
};

}  // namespace rpc_backends::zeromq
