// What the links use of the transport.
#pragma once

#include "identity.h"
#include "inbox.h"
#include "rpc_backends_agents/callback_thread.h"
#include "rpc_backends_agents/releaser.h"
#include "settings.h"
#include "timers.h"
#include "ucp.h"

namespace rpc_backends::ucx {

struct Services {
  const Settings& settings;
  Counters& counters;
  Inbox& inbox;
  CallbackThread& callback_thread;
  Releaser& releaser;
  Timers& timers;
  const DeviceMemory& device_memory;
  const Identity* identity;  // null if workers have no certificates
};

}  // namespace rpc_backends::ucx
