// The event log of a worker: a JSON object a line, each written at once, so that a process that dies leaves all.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

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
  // How many lines could not be written, and why the first could not. From the first on none is written: what
  // stands in the file is what happened up to a moment.
  std::pair<uint64_t, std::string> failure() const;

  // A line that Python has made: an object without its braces, less the time.
  void add(std::string_view members);
  void add_request(uint64_t id, const FaultMessage& message, const Faults& faults);
  // What became of a request: "sent" (after it was held), "end".
  void add_sent(uint64_t id);
  // What a replay has to say while it runs.
  void add_news(std::string_view text);
  void add_end(uint64_t id, std::string_view outcome, std::string_view text, const Faults& answer_faults);

 private:
  void write_line(std::string_view members);

  void fail(int error);

  std::atomic<int> file_{-1};
  mutable std::mutex mutex_;  // of the file, so that it is not closed under a write
  std::string path_;
  uint64_t lost_ = 0;
  std::string why_;
};

}  // namespace rpc_backends
