#include "libzmq.h"

#include <dlfcn.h>

#include <mutex>

#include "rpc_backends_agents/transport.h"

namespace rpc_backends::zeromq {

namespace {

Library library;
bool loaded = false;
std::mutex mutex;

template <typename Function>
void find(void* handle, const char* name, Function& function) {
  void* found = dlsym(handle, name);
  if (found == nullptr) {
    throw TransportError(std::string("libzmq has no ") + name + "; version 4.3 or newer is needed. Update pyzmq.");
  }
  function = reinterpret_cast<Function>(found);
}

void check_version() {
  int major = 0, minor = 0, patch = 0;
  library.version(&major, &minor, &patch);
  if (major != 4 || minor < 3) {
    throw TransportError("libzmq " + library.version_text() +
                         " is loaded by pyzmq; version 4.3 or newer is needed. Update pyzmq.");
  }
}

void find_all(void* handle) {
  find(handle, "zmq_version", library.version);
  check_version();
  find(handle, "zmq_has", library.has);
  find(handle, "zmq_strerror", library.strerror);
  find(handle, "zmq_ctx_new", library.ctx_new);
  find(handle, "zmq_ctx_set", library.ctx_set);
  find(handle, "zmq_ctx_get", library.ctx_get);
  find(handle, "zmq_ctx_shutdown", library.ctx_shutdown);
  find(handle, "zmq_ctx_term", library.ctx_term);
  find(handle, "zmq_socket", library.socket);
  find(handle, "zmq_close", library.close);
  find(handle, "zmq_setsockopt", library.setsockopt);
  find(handle, "zmq_getsockopt", library.getsockopt);
  find(handle, "zmq_bind", library.bind);
  find(handle, "zmq_connect", library.connect);
  find(handle, "zmq_socket_monitor", library.socket_monitor);
  find(handle, "zmq_msg_init", library.msg_init);
  find(handle, "zmq_msg_init_size", library.msg_init_size);
  find(handle, "zmq_msg_init_data", library.msg_init_data);
  find(handle, "zmq_msg_send", library.msg_send);
  find(handle, "zmq_msg_recv", library.msg_recv);
  find(handle, "zmq_msg_close", library.msg_close);
  find(handle, "zmq_msg_move", library.msg_move);
  find(handle, "zmq_msg_data", library.msg_data);
  find(handle, "zmq_msg_size", library.msg_size);
  find(handle, "zmq_msg_more", library.msg_more);
  find(handle, "zmq_msg_get", library.msg_get);
  find(handle, "zmq_msg_gets", library.msg_gets);
  find(handle, "zmq_curve_keypair", library.curve_keypair);
  find(handle, "zmq_z85_encode", library.z85_encode);
}

}  // namespace

std::string Library::version_text() const {
  int major = 0, minor = 0, patch = 0;
  version(&major, &minor, &patch);
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

void load_library(const std::vector<std::string>& files) {
  std::lock_guard<std::mutex> lock(mutex);
  if (loaded) {
    return;
  }
  for (const std::string& file : files) {
    // Never closed, because the functions are used until the process ends.
    void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr && dlsym(handle, "zmq_msg_init_size") != nullptr) {
      find_all(handle);
      loaded = true;
      return;
    }
  }
  throw TransportError(
      "pyzmq is installed, but other libraries cannot use its libzmq: it was probably linked into "
      "pyzmq's own extension. Install pyzmq from a wheel (pip install --force-reinstall --only-binary pyzmq pyzmq).");
}

const Library& zmq() {
  return library;
}

std::string text_of(int error) {
  return library.strerror(error);
}

}  // namespace rpc_backends::zeromq
