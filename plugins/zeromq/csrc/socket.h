// Wrappers of a ZeroMQ socket and its context, independent of their use.
#pragma once

#include <cstdint>
#include <string>

#include "frame.h"
#include "settings.h"

namespace rpc_backends::zeromq {

class Context {
 public:
  // Throws TransportError if the process has too many files open, where libzmq would call abort().
  explicit Context(int io_threads);

  // Waits until all sockets are closed and lingering ones have sent their messages.
  ~Context();

  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  void* raw() const { return context_; }

 private:
  void* context_;
};

// Not thread-safe.
class Socket {
 public:
  // Queues are unlimited. After close() nothing is sent, unless linger() was called.
  Socket(Context& context, int type);
  ~Socket();

  Socket(Socket&& other) noexcept : socket_(other.socket_) { other.socket_ = nullptr; }
  Socket& operator=(Socket&&) = delete;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  void set(int option, int value);
  void set(int option, int64_t value);
  void set(int option, const std::string& value);

  // Ends each connection on which nothing arrives for settings.heartbeat_timeout.
  void watch_for_silence(const Settings& settings);

  // Return false and set errno on failure. bind() throws TransportError if too many files are open.
  bool bind(const std::string& endpoint);
  bool connect(const std::string& endpoint);
  bool monitor(const std::string& endpoint, int events);

  // Stops reporting events to the monitor.
  void end_monitor();

  std::string last_endpoint();

  // A descriptor that becomes readable when the socket's state may have changed. After any use of the socket, look
  // for messages before you wait for this descriptor.
  int fd();

  // Never block. Return false with errno EAGAIN if there is no message, or no room for one.
  bool receive(Frame& frame);
  bool send(Frame& frame, bool more);

  // The time in seconds for which close() still sends queued messages. Never throws: closing must not fail.
  void linger(double seconds);

 private:
  void set(int option, const void* value, size_t size);

  void* socket_;
};

}  // namespace rpc_backends::zeromq
