#include "ucp.h"

#include <ucs/config/parser.h>
#include <ucs/debug/log_def.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <sstream>
#include <utility>

namespace rpc_backends::ucx {

namespace {

bool prints = false;
thread_local std::string log_line;

ucs_log_func_rc_t on_log(const char* /*file*/, unsigned /*line*/, const char* /*function*/, ucs_log_level_t level,
                         const ucs_log_component_config_t* /*component*/, const char* format, va_list arguments) {
  if (level <= UCS_LOG_LEVEL_WARN) {
    char text[512];
    va_list copy;
    va_copy(copy, arguments);
    std::vsnprintf(text, sizeof text, format, copy);
    va_end(copy);
    log_line = text;
  }
  return prints ? UCS_LOG_FUNC_RC_CONTINUE : UCS_LOG_FUNC_RC_STOP;
}

// Returns what a function prints to a file.
template <typename Print>
std::string printed(Print print) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* const file = open_memstream(&text, &size);
  if (file == nullptr) {
    throw std::bad_alloc();
  }
  print(file);
  std::fclose(file);
  std::string copied(text, size);
  std::free(text);
  return copied;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

}  // namespace

std::string text_of(ucs_status_t status) {
  return ucs_status_string(status);
}

void check(ucs_status_t status, const std::string& what) {
  if (status == UCS_OK) {
    return;
  }
  const std::string line = take_log_line();
  throw TransportError(what + ": " + text_of(status) + (line.empty() ? "" : " (UCX says: " + line + ")"));
}

std::string take_log_line() {
  return std::exchange(log_line, std::string());
}

void capture_log(bool also_print) {
  prints = also_print;
  static const bool once = [] {
    ucs_log_push_handler(&on_log);
    return true;
  }();
  (void)once;
}

std::set<std::string> setting_names() {
  const std::string prefix = "UCX_";
  const std::vector<std::pair<std::string, std::string>> smallest{{"TLS", "self"}};
  const Context loads_modules(smallest);
  const std::string all = printed([&](std::FILE* file) {
    const auto flags = static_cast<ucs_config_print_flags_t>(UCS_CONFIG_PRINT_CONFIG | UCS_CONFIG_PRINT_HIDDEN);
    ucs_config_parser_print_all_opts(file, prefix.c_str(), flags, &ucs_config_global_list, nullptr);
  });
  std::set<std::string> names;
  for (const std::string& line : lines_of(all)) {
    const size_t sign = line.find('=');
    if (sign != std::string::npos && line.compare(0, prefix.size(), prefix) == 0) {
      names.insert(line.substr(prefix.size(), sign - prefix.size()));
    }
  }
  return names;
}

Context::Context(const std::vector<std::pair<std::string, std::string>>& settings) {
  ucp_config_t* config = nullptr;
  check(ucp_config_read(nullptr, nullptr, &config), "UCX cannot read its settings");
  struct Release {
    ucp_config_t* config;
    ~Release() { ucp_config_release(config); }
  } release{config};
  for (const auto& [name, value] : settings) {
    check(ucp_config_modify(config, name.c_str(), value.c_str()), "UCX does not accept UCX_" + name + "=" + value);
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "rpc-backend-ucx";
  params.mt_workers_shared = 1;
  check(ucp_init(&params, config, &context_), "UCX cannot start");
}

std::vector<std::string> Context::resources() const {
  const std::string all = printed([this](std::FILE* file) { ucp_context_print_info(context_, file); });
  std::vector<std::string> maps;
  for (const std::string& line : lines_of(all)) {
    // "#      resource 0  :  md 0  dev 0  flags -- self/memory"
    if (line.find(" resource ") != std::string::npos) {
      maps.push_back(line.substr(line.rfind(' ') + 1));
    }
  }
  return maps;
}

DeviceMemory::DeviceMemory(const Context& context, const std::map<std::string, std::string>& names) {
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  check(ucp_context_query(context.get(), &attributes), "UCX does not say which memory it moves");
  std::string all;
  for (const auto& [device, name] : names) {
    all.clear();
    for (int type = UCS_MEMORY_TYPE_HOST; type < UCS_MEMORY_TYPE_LAST; ++type) {
      if ((attributes.memory_types & (uint64_t{1} << type)) == 0) {
        continue;
      }
      all += (all.empty() ? "" : ", ") + std::string(ucs_memory_type_names[type]);
      if (name == ucs_memory_type_names[type]) {
        types_[device] = static_cast<ucs_memory_type_t>(type);
      }
    }
    if (!moves(device)) {
      throw TransportError("device_memory has '" + device + "': '" + name + "', and UCX moves only this memory here: " +
                           all + ". Its modules, the driver or the option transports may lack what it needs");
    }
  }
}

ucs_memory_type_t DeviceMemory::type_of(const Memory& memory) const {
  if (memory.is_host()) {
    return UCS_MEMORY_TYPE_HOST;
  }
  const auto entry = types_.find(memory.type);
  if (entry == types_.end()) {
    throw TransportError(std::string("UCX does not move memory of '") + memory.type + "' here");
  }
  return entry->second;
}

Worker::Worker(const Context& context) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_AM_ALIGNMENT;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  params.am_alignment = 16;
  check(ucp_worker_create(context.get(), &params, &worker_), "UCX cannot make a worker");
}

std::string Worker::address() const {
  ucp_address_t* address = nullptr;
  size_t size = 0;
  check(ucp_worker_get_address(worker_, &address, &size), "UCX gives no address");
  std::string copied(reinterpret_cast<const char*>(address), size);
  ucp_worker_release_address(worker_, address);
  return copied;
}

int Worker::event_fd() const {
  int fd = -1;
  check(ucp_worker_get_efd(worker_, &fd), "UCX gives no event descriptor");
  return fd;
}

size_t Worker::max_header() const {
  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
  check(ucp_worker_query(worker_, &attributes), "UCX does not say how long a header may be");
  return attributes.max_am_header;
}

void Worker::handle(wire::Kind kind, ucp_am_recv_callback_t callback, void* argument) {
  ucp_am_handler_param_t params{};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG |
                      UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  params.id = static_cast<unsigned>(kind);
  params.flags = UCP_AM_FLAG_WHOLE_MSG;
  params.cb = callback;
  params.arg = argument;
  check(ucp_worker_set_am_recv_handler(worker_, &params), "UCX cannot receive messages");
}

namespace {

// The transports and devices of an endpoint; none if UCX does not tell.
std::vector<std::pair<std::string, std::string>> entries_of(ucp_ep_h endpoint) {
  ucp_transport_entry_t entries[16]{};
  ucp_ep_attr_t attributes{};
  attributes.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS;
  attributes.transports.entries = entries;
  attributes.transports.num_entries = std::size(entries);
  attributes.transports.entry_size = sizeof entries[0];
  if (ucp_ep_query(endpoint, &attributes) != UCS_OK) {
    return {};
  }
  std::vector<std::pair<std::string, std::string>> pairs;
  for (unsigned i = 0; i < attributes.transports.num_entries; ++i) {
    pairs.emplace_back(entries[i].transport_name, entries[i].device_name);
  }
  return pairs;
}

}  // namespace

std::string transports_of(ucp_ep_h endpoint) {
  std::set<std::string> seen;
  std::string text;
  for (const auto& [transport, device] : entries_of(endpoint)) {
    const std::string pair = transport + "/" + device;
    if (seen.insert(pair).second) {
      text += (text.empty() ? "" : " ") + pair;
    }
  }
  return text;
}

bool is_in_shared_memory(ucp_ep_h endpoint) {
  const auto entries = entries_of(endpoint);
  return std::any_of(entries.begin(), entries.end(), [](const auto& entry) {
    return entry.first == "posix" || entry.first == "sysv" || entry.first == "xpmem";
  });
}

}  // namespace rpc_backends::ucx
