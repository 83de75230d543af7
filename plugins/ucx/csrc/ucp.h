// UCX's context and worker, and errors of UCX as exceptions.
#pragma once

#include <ucp/api/ucp.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "rpc_backends_agents/transport.h"
#include "settings.h"

namespace rpc_backends::ucx {

std::string text_of(ucs_status_t status);

// Throws TransportError with UCX's message if the status is an error.
void check(ucs_status_t status, const std::string& what);

// The line that UCX has logged last on this thread; empty if none. Taking it clears it.
std::string take_log_line();

// Sends UCX's log lines to take_log_line() instead of the standard output. `also_print`: keep printing them.
void capture_log(bool also_print);

// The names of all of UCX's settings, without "UCX_".
std::set<std::string> setting_names();

class Context {
 public:
  // `config`: settings by name. Throws TransportError.
  explicit Context(const std::vector<std::pair<std::string, std::string>>& config);
  ~Context() { ucp_cleanup(context_); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  ucp_context_h get() const { return context_; }
  // The transports and devices that UCX has here with these settings, for example "tcp/eth0".
  std::vector<std::string> resources() const;

 private:
  ucp_context_h context_ = nullptr;
};

// UCX's types of memory for the types of devices whose memory it moves. Does not change.
class DeviceMemory {
 public:
  // `names`: UCX's names, by torch's names of devices. Throws TransportError if UCX cannot move such memory here.
  DeviceMemory(const Context& context, const std::map<std::string, std::string>& names);

  bool moves(const std::string& device_type) const { return types_.count(device_type) != 0; }
  // Throws TransportError if UCX does not move this memory.
  ucs_memory_type_t type_of(const Memory& memory) const;

 private:
  std::map<std::string, ucs_memory_type_t> types_;
};

// Not thread-safe: callers need a lock.
class Worker {
 public:
  explicit Worker(const Context& context);
  ~Worker() { ucp_worker_destroy(worker_); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  std::string address() const;
  int event_fd() const;
  size_t max_header() const;
  void handle(wire::Kind kind, ucp_am_recv_callback_t callback, void* argument);

  ucp_worker_h get() const { return worker_; }

 private:
  ucp_worker_h worker_ = nullptr;
};

// The transports and devices of an endpoint, for example "posix/memory cma/memory".
std::string transports_of(ucp_ep_h endpoint);
// Whether the endpoint's messages go through shared memory.
bool is_in_shared_memory(ucp_ep_h endpoint);

}  // namespace rpc_backends::ucx
