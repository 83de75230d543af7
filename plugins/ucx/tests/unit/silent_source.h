// Traffic for an inbox: there is none.
#pragma once

#include "inbox.h"

namespace rpc_backends::ucx {

struct SilentSource : Inbox::Source {
  bool progress() override { return false; }
  bool arm() override { return true; }
  void on_ready(uint64_t /*id*/) override {}
  int event_fd() const override { return signal.fd(); }
  Signal signal;
};

}  // namespace rpc_backends::ucx
