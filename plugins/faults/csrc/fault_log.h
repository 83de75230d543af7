// The event log of a worker: a JSON object a line, each written at once, so that a process that dies leaves all.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "fault_rules.h"

namespace rpc_backends {

class FaultLog {
 public:
  FaultLog() = default;
  FaultLog(const FaultLog&) = delete;
  FaultLog& operator=(const FaultLog&) = delete;
  ~FaultLog() { close(); }

  // Adds to the file `path`. Throws std::runtime_error.
  void open(const std::string& path);
  void close();
  bool is_open() const { return file_ >= 0; }

  // A line that Python has made: an object without its braces, less the time.
  void add(std::string_view members);
  void add_request(uint64_t id, const FaultMessage& message, const Faults& faults);
  // What became of a request: "sent" (after it was held), "end".
  void add_sent(uint64_t id);
  void add_end(uint64_t id, std::string_view outcome, std::string_view text, const Faults& answer_faults);

 private:
  void write_line(std::string_view members);

  std::atomic<int> file_{-1};
};

}  // namespace rpc_backends
