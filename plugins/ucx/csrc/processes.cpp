#include "processes.h"

#include <cerrno>
#include <cstring>
#include <string>

#include "link.h"
#include "rpc_backends_agents/process.h"

namespace rpc_backends::ucx {

namespace {

// How long the end of a process may be seen after its sockets and its memory are closed.
constexpr int kExitMilliseconds = 50;

[[noreturn]] void throw_ended(int peer) {
  throw ProcessEnded(called(peer) + " is lost: its process has ended");
}

// Opens a process. Returns false if there is none with this id, or the system has no descriptors of processes, or a
// sandbox forbids them: then only a message that fails tells that the process has ended.
bool open(int peer, int pid, std::optional<Fd>& process) {
  const int fd = open_process(pid);
  const int error = errno;
  if (fd != -1) {
    process.emplace(fd);
    return true;
  }
  if (error == EMFILE || error == ENFILE || error == ENOMEM) {
    throw TransportError("the process of " + called(peer) + " cannot be watched: " + std::strerror(error));
  }
  return false;
}

}  // namespace

void Processes::watch(int peer, const Process& process) {
  if (process.pid == 0 || watched_.count(peer) != 0) {
    return;
  }
  try {
    const uint64_t id = next_id_++;
    Watched& watched = watched_.try_emplace(peer, id).first->second;
    const bool is_open = open(peer, process.pid, watched.process);
    // Only now, because another process may have had the id when it was opened.
    if (has_ended(process)) {
      throw_ended(peer);
    }
    if (!is_open) {
      forget(peer);
      return;
    }
    peers_[id] = peer;
    inbox_.watch(watched.process->get(), id);
  } catch (...) {
    forget(peer);  // so that the next attempt to reach the peer watches it
    throw;
  }
}

void Processes::forget(int peer) {
  const auto watched = watched_.find(peer);
  if (watched != watched_.end()) {
    if (watched->second.process) {
      inbox_.unwatch(watched->second.process->get());
    }
    peers_.erase(watched->second.id);
    watched_.erase(watched);
  }
}

void Processes::check_end(int peer) {
  const auto watched = watched_.find(peer);
  if (watched != watched_.end() && ends_within(kExitMilliseconds, *watched->second.process)) {
    forget(peer);
    throw_ended(peer);
  }
}

std::optional<int> Processes::peer_of(uint64_t id) const {
  const auto watched = peers_.find(id);
  return watched == peers_.end() ? std::nullopt : std::optional(watched->second);
}

void Processes::watch_again(uint64_t id) {
  if (const auto peer = peer_of(id)) {
    inbox_.watch_again(watched_.at(*peer).process->get(), id);
  }
}

}  // namespace rpc_backends::ucx
