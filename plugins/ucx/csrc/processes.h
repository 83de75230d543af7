// Watches the processes of peers on this host, so that their workers are lost as soon as they end. Needs the
// transport's lock.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "inbox.h"
#include "rpc_backends_agents/fd.h"

namespace rpc_backends::ucx {

// Thrown for a peer whose process has ended.
class ProcessEnded : public TransportError {
 public:
  using TransportError::TransportError;
};

class Processes {
 public:
  explicit Processes(Inbox& inbox) : inbox_(inbox) {}

  // Throws ProcessEnded, or TransportError if the process cannot be watched now. Does nothing if the process of this
  // peer is watched already.
  void watch(int peer, const Process& process);
  void forget(int peer);
  // For a peer that cannot be reached: throws ProcessEnded if its process has ended, or ends just now.
  void check_end(int peer);

  // The peer whose process has ended, for an id that the inbox reports.
  std::optional<int> peer_of(uint64_t id) const;
  // Makes the inbox report the id once more.
  void watch_again(uint64_t id);

 private:
  struct Watched {
    explicit Watched(uint64_t id) : id(id) {}

    std::optional<Fd> process;
    const uint64_t id;
  };

  Inbox& inbox_;
  std::unordered_map<int, Watched> watched_;  // by peer
  std::unordered_map<uint64_t, int> peers_;   // by id in the inbox
  uint64_t next_id_ = Inbox::kFirstId + 1;
};

}  // namespace rpc_backends::ucx
