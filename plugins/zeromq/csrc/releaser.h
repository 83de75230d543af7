// The thread that releases the owners of sent memory. libzmq releases a message on its I/O thread, which all
// connections and heartbeats need. Releasing an owner may block: for a NumPy array it takes the GIL.
#pragma once

#include <memory>
#include <thread>

#include "rpc_backends_agents/transport.h"
#include "wire.h"

namespace rpc_backends::zeromq {

class Releaser {
 public:
  Releaser();
  ~Releaser() { stop(); }

  // Makes the owners of `parts` be released on this thread, wherever the last reference to a part is dropped. Small
  // parts keep their owners: they are copied before they are sent, or belong to the agent.
  void hold(Parts& parts) const noexcept;

  // Waits a grace period until everything queued is released. A release that hangs is left behind; later releases
  // run where the reference is dropped.
  void stop();

 private:
  struct State;
  struct Owner;

  // Shared with the thread, which may outlive this object.
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace rpc_backends::zeromq
