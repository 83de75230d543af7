// Processes of other workers on this host, and whether they have ended.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

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
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file == -1) {
    return 0;
  }
  const Fd opened(file);
  char line[2048];
  const ssize_t size = ::read(file, line, sizeof line - 1);
  line[std::max<ssize_t>(size, 0)] = '\0';
  const char* place = std::strrchr(line, ')');  // end of the name, which may contain any characters
  for (int field = 2; place != nullptr && field < 22; ++field) {
    place = std::strchr(place + 1, ' ');
  }
  return place == nullptr ? 0 : std::strtoull(place, nullptr, 10);
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
  if (::kill(process.pid, 0) == -1 && errno == ESRCH) {
    return true;
  }
  // None if a thread of another process has the id now, or the system has no descriptors of processes.
  const int fd = open_process(process.pid);
  if (fd != -1) {
    const Fd opened(fd);
    if (ends_within(0, opened)) {
      return true;
    }
  }
  const uint64_t start = start_of(process.pid);
  return start != 0 && start != process.start;
}

}  // namespace rpc_backends
