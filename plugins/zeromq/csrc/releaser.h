// The thread on which the owners of sent memory go. libzmq lets go of a message on its I/O thread, which every
// connection and every heartbeat needs, and an owner may wait as it goes: that of a NumPy array takes the GIL.
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

  // Has the owners of parts go on the thread, whoever lets go of a part last. The owner of a small part is left:
  // small parts are copied before they are sent, or are the agent's own.
  void hold(Parts& parts) const noexcept;

  // Waits a while until all that is there is released. A release that does not end is left alone; what comes
  // later is released where it comes.
  void stop();

 private:
  struct State;
  struct Owner;

  // The thread's too, which may be left alone.
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace rpc_backends::zeromq
