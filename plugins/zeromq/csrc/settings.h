// The settings of a transport, and its counters.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>

#include "rpc_backends_agents/process.h"

namespace rpc_backends {
class Certificates;
}

namespace rpc_backends::zeromq {

struct Settings {
  // As make_keys() makes them; empty for no encryption.
  std::string public_key;
  std::string secret_key;
  bool fips = false;
  // Limit for the parts of one message together, in bytes.
  uint64_t max_message = 0;
  // Seconds.
  double heartbeat = 0;
  double heartbeat_timeout = 0;
  double handshake_timeout = 0;
  // Whether both sides of a Unix socket must prove which worker they are.
  bool wants_proofs = false;
  // Connections to each peer for large messages, in addition to the first one. There is one at most within a host, and
  // on links with a shorter round trip than `long_link`, in seconds: several would only fill the queues on the way.
  uint32_t bulk_connections = 0;
  double long_link = 0;

  // In place of keys: the certificate of this worker. Then Unix sockets are encrypted, too, and proofs are needed over
  // TCP, too, because several workers may have one identity. `public_key` is that of the certificate's owner.
  std::shared_ptr<const Certificates> certificates;

  bool encrypts() const { return !public_key.empty(); }
  bool encrypts(bool is_unix) const { return encrypts() && (!is_unix || certificates); }
  bool needs_proofs(bool is_unix) const { return wants_proofs && (is_unix || certificates); }
};

inline constexpr size_t kProofSize = 32;

// The data with which two workers authenticate each other. The proofs, for Unix sockets, are empty or kProofSize
// bytes.
struct Credentials {
  std::string public_key;                    // the peer's, Z85; empty without encryption
  std::string our_greeting, their_greeting;  // sent by the side that connects
  std::string our_answer, their_answer;      // sent by the side that listens
  uint64_t max_message = UINT64_MAX;         // the peer's limit for one message, in bytes
  Process process;                           // once it has ended, nothing is sent to its port

  friend bool operator==(const Credentials&, const Credentials&) = default;
};

inline int milliseconds(double seconds) {
  return static_cast<int>(std::lround(seconds * 1000));
}

struct Counters {
  std::atomic<uint64_t> messages_sent{0}, messages_received{0};
  std::atomic<uint64_t> connections{0};  // opened by this worker
  std::atomic<uint64_t> bulk_pieces{0};  // sent on connections for large messages
  std::atomic<uint64_t> peers_lost{0}, peers_found{0};
  std::atomic<uint64_t> refused{0};     // connections refused for a wrong identity
  std::atomic<uint64_t> handshakes{0};  // handshakes that failed for other reasons
  std::atomic<uint64_t> evicted{0};     // unauthenticated connections ended to make room
  std::atomic<uint64_t> rejected{0};    // connections ended for invalid data
  std::atomic<uint64_t> dropped{0};     // messages dropped from rejected connections
};

}  // namespace rpc_backends::zeromq
