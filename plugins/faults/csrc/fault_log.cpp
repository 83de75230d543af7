#include "fault_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace rpc_backends {

namespace {

void add_text(std::string& line, std::string_view text) {
  line += '"';
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\') {
      line += '\\';
      line += letter;
    } else if (byte < 0x20 || byte == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", byte);
      line += escaped;
    } else {
      line += letter;
    }
  }
  line += '"';
}

void add_seconds(std::string& line, double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6f", seconds);
  line += text;
}

void add_faults(std::string& line, const Faults& faults) {
  if (faults.empty()) {
    return;
  }
  line += ",\"faults\":[";
  for (const Fault& fault : faults) {
    line += line.back() == '[' ? "{\"rule\":" : ",{\"rule\":";
    add_text(line, fault.rule->name);
    line += ",\"what\":\"";
    line += kind_name(fault.rule->kind);
    line += "\",\"seconds\":";
    add_seconds(line, fault.seconds);
    if (fault.rule->version > 0) {
      line += ",\"version\":" + std::to_string(fault.rule->version);
    }
    line += '}';
  }
  line += ']';
}

}  // namespace

void FaultLog::open(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) {
    throw std::runtime_error("the event log '" + path + "' cannot be written: " + std::strerror(errno));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  path_ = path;
  file_ = file;
}

void FaultLog::close() {
  std::lock_guard<std::mutex> lock(mutex_);
  const int file = file_.exchange(-1);
  // A network file system may report a full disk only at close.
  if (file >= 0 && ::close(file) != 0 && lost_ == 0) {
    fail(errno);
  }
}

std::pair<uint64_t, std::string> FaultLog::failure() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return {lost_, why_};
}

void FaultLog::fail(int error) {
  if (lost_++ == 0) {
    why_ = std::strerror(error);
    std::fprintf(stderr, "RPC faults: the event log '%s' is cut off: %s\n", path_.c_str(), why_.c_str());
  }
}

void FaultLog::write_line(std::string_view members) {
  if (!is_open()) {
    return;
  }
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::string line = "{\"t\":";
  add_seconds(line, now);
  line += ',';
  line += members;
  line += "}\n";
  std::lock_guard<std::mutex> lock(mutex_);
  if (!is_open()) {
    return;  // closed in the meantime, which is not a failure
  }
  if (lost_ > 0) {
    ++lost_;
    return;
  }
  // Written data survives the process. After a short write the loop continues: the next write reports the reason.
  for (size_t done = 0; done < line.size();) {
    const auto written = ::write(file_, line.data() + done, line.size() - done);
    if (written >= 0) {
      done += static_cast<size_t>(written);
    } else if (errno != EINTR) {
      fail(errno);
      return;
    }
  }
}

void FaultLog::add(std::string_view members) {
  write_line(members);
}

void FaultLog::add_request(uint64_t id, const FaultMessage& message, const Faults& faults) {
  if (!is_open()) {
    return;
  }
  char digest[20];
  std::snprintf(digest, sizeof(digest), "%016llx", static_cast<unsigned long long>(message.digest));
  std::string line = "\"event\":\"request\",\"id\":" + std::to_string(id) + ",\"to\":";
  add_text(line, message.receiver);
  line += ",\"type\":\"";
  line += type_name(message.type);
  line += '"';
  if (!message.wrappers.empty()) {
    line += ",\"inside\":[";
    for (const int32_t type : message.wrappers) {
      line += line.back() == '[' ? "\"" : ",\"";
      line += type_name(type);
      line += '"';
    }
    line += ']';
  }
  if (!message.function.empty()) {
    line += ",\"function\":";
    add_text(line, message.function);
  }
  line += ",\"bytes\":" + std::to_string(message.bytes) + ",\"digest\":\"" + digest +
          "\",\"nth\":" + std::to_string(message.nth);
  add_faults(line, faults);
  write_line(line);
}

void FaultLog::add_sent(uint64_t id) {
  write_line("\"event\":\"sent\",\"id\":" + std::to_string(id));
}

void FaultLog::add_replay_status(std::string_view text) {
  std::string line = "\"event\":\"replay\",\"text\":";
  add_text(line, text);
  write_line(line);
}

void FaultLog::add_end(uint64_t id, std::string_view outcome, std::string_view text, const Faults& answer_faults) {
  if (!is_open()) {
    return;
  }
  std::string line = "\"event\":\"end\",\"id\":" + std::to_string(id) + ",\"outcome\":";
  add_text(line, outcome);
  if (!text.empty()) {
    line += ",\"text\":";
    add_text(line, text.substr(0, 500));
  }
  add_faults(line, answer_faults);
  write_line(line);
}

}  // namespace rpc_backends
