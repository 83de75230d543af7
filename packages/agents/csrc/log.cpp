#include "log.h"

#include <iostream>
#include <mutex>

namespace rpc_backends {

namespace {

std::mutex sink_mutex;
std::function<void(const std::string&)> sink;

}  // namespace

void send_warnings_to(std::function<void(const std::string&)> new_sink) {
  std::lock_guard<std::mutex> lock(sink_mutex);
  sink = std::move(new_sink);
}

void warn(const std::string& text) {
  std::function<void(const std::string&)> current;
  {
    std::lock_guard<std::mutex> lock(sink_mutex);
    current = sink;
  }
  if (current) {
    current(text);
  } else {
    std::cerr << text << std::endl;
  }
}

}  // namespace rpc_backends
