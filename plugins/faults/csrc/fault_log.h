// The event log of a worker: one JSON object per line. Every line is written immediately, so the log of a process
// that dies is complete up to that moment.
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

  // Opens the file `path` for appending. Throws std::runtime_error if that fails.
  void open(const std::string& path);
  void close();
  bool is_open() const { return file_ >= 0; }
  // How many lines could not be written, and why the first one could not. After the first failure no more lines are
  // written, so the file has no gaps.
  std::pair<uint64_t, std::string> failure() const;

  // Adds a line that Python has formatted: the members of a JSON object without braces and without the time.
  void add(std::string_view members);
  void add_request(uint64_t id, const FaultMessage& message, const Faults& faults);
  // A request that was held is sent now.
  void add_sent(uint64_t id);
  // A replay has diverged or stalled.
  void add_replay_status(std::string_view text);
  // A request has ended.
  void add_end(uint64_t id, std::string_view outcome, std::string_view text, const Faults& answer_faults);

 private:
  void write_line(std::string_view members);

  void fail(int error);

  std::atomic<int> file_{-1};
  mutable std::mutex mutex_;  // keeps close() from closing the file during a write
  std::string path_;
  uint64_t lost_ = 0;
  std::string why_;
};

}  // namespace rpc_backends
