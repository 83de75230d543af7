// What a transport runs with, and what it counts.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <string>

#include "wire.h"

namespace rpc_backends::zeromq {

inline constexpr size_t kKeySize = 40;  // of a public or secret key in Z85

struct Settings {
  // Z85; empty for no encryption (mechanism NULL).
  std::string public_key;
  std::string secret_key;
  // Bytes that the parts of one message may have together.
  uint64_t max_message = 0;
  // Seconds.
  double heartbeat = 0;
  double heartbeat_timeout = 0;
  double handshake_timeout = 0;
  int io_threads = 1;
  // Whether who connects to a Unix socket, or is connected to, has to prove who it is.
  bool wants_proofs = false;

  bool encrypts() const { return !public_key.empty(); }
  size_t largest_frame() const { return encrypts() ? wire::kLargestFrame : wire::kLargestPlainFrame; }
};

inline constexpr size_t kProofSize = 32;

// How two workers know each other. The proofs, on Unix sockets, are empty or of kProofSize.
struct Credentials {
  std::string public_key;  // the peer's, Z85; empty without encryption
  std::string our_greeting, their_greeting;  // of who connects
  std::string our_answer, their_answer;      // of who listens
  uint64_t max_message = UINT64_MAX;         // bytes of one message that the peer takes

  friend bool operator==(const Credentials&, const Credentials&) = default;
};

inline int milliseconds(double seconds) {
  return static_cast<int>(std::lround(seconds * 1000));
}

struct Counters {
  std::atomic<uint64_t> messages_sent{0}, messages_received{0};
  std::atomic<uint64_t> connections{0};  // made by this worker, each until it ended
  std::atomic<uint64_t> lost{0}, found{0};
  std::atomic<uint64_t> refused{0};     // who connected, and was not let in
  std::atomic<uint64_t> handshakes{0};  // that failed for other reasons
  std::atomic<uint64_t> evicted{0};     // connections ended before they were authenticated, for want of room
  std::atomic<uint64_t> rejected{0};    // connections that were ended for what came by them
  std::atomic<uint64_t> dropped{0};     // messages that came by those
};

}  // namespace rpc_backends::zeromq
