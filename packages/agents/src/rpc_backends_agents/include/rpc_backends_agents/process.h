// Processes of other workers on this host, and whether they have ended.
#pragma once

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "rpc_backends_agents/fd.h"

namespace rpc_backends {

struct Process {
  int pid = 0;         // 0: unknown, or on another host
  uint64_t start = 0;  // its start time in clock ticks, which tells whether the pid was reused

  friend bool operator==(const Process&, const Process&) = default;
};

// Returns a descriptor of a process, or -1 with errno.
inline int open_process(int pid) {
  return static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
}

// Returns the start time of a process, in clock ticks; 0 if there is no such process, or /proc hides it.
inline uint64_t start_of(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string line((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t end = line.rfind(')');  // end of the name, which may contain any characters
  if (end == std::string::npos) {
    return 0;
  }
  std::istringstream fields(line.substr(end + 1));
  std::string skipped;
  uint64_t start = 0;
  for (int i = 0; i < 19; ++i) {
    fields >> skipped;
  }
  fields >> start;
  return start;
}

// Whether a process ends within so many milliseconds; also if its parent has not waited for it yet.
inline bool ends_within(int milliseconds, const Fd& process) {
  pollfd end{process.get(), POLLIN, 0};
  return poll(&end, 1, milliseconds) == 1;
}

// Whether a process has certainly ended.
inline bool has_ended(const Process& process) {
  if (process.pid == 0) {
    return false;
  }
  const int fd = open_process(process.pid);
  if (fd == -1) {
    return errno == ESRCH;
  }
  const Fd opened(fd);
  if (ends_within(0, opened)) {
    return true;
  }
  const uint64_t start = start_of(process.pid);
  return start != 0 && start != process.start;
}

}  // namespace rpc_backends
