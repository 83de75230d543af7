// Where the agents' warnings go: to Python's logger, once the module is imported.
#pragma once

#include <functional>
#include <string>

namespace rpc_backends {

void warn(const std::string& text);
void send_warnings_to(std::function<void(const std::string&)> sink);

}  // namespace rpc_backends
