// The thread that runs the owner's callbacks. They may block there, for example on Python's GIL or on a store,
// without blocking the rest of the transport.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

namespace rpc_backends::zeromq {

class CallbackThread {
 public:
  // Returns the worker that has this public key (Z85), or nullopt. `waited`: seconds since the lookup was
  // requested.
  using OnUnknownKey = std::function<std::optional<int>(const std::string& key, double waited)>;
  // Logs a line.
  using OnRefused = std::function<void(const std::string& line)>;
  using Answer = std::function<void(std::optional<int>)>;

  // Either callback may be empty.
  CallbackThread(OnUnknownKey on_unknown_key, OnRefused on_refused);
  ~CallbackThread() { stop(); }

  bool can_look_up() const;

  // Returns false if the queue is full. Otherwise `answer` is called on this thread; it must not block.
  bool look_up(const std::string& key, Answer answer);

  // Drops the line if the queue is full.
  void report(const std::string& line);

  // Drops queued tasks and waits a grace period for a running callback. A callback that does not return keeps its
  // thread, and its answer is dropped.
  void stop();

 private:
  struct State;

  // Shared with the thread, which may outlive this object.
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace rpc_backends::zeromq
