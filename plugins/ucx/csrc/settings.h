// The settings of a transport, what it knows about a peer, and its counters.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rpc_backends_agents/openssl/certificates.h"
#include "rpc_backends_agents/process.h"
#include "wire.h"

namespace rpc_backends::ucx {

using Clock = std::chrono::steady_clock;

struct Settings {
  // UCX's settings by name, without "UCX_".
  std::vector<std::pair<std::string, std::string>> config;
  // Limit for the parts of one message together, in bytes.
  uint64_t max_message = 0;
  // How long to poll after a message before sleeping.
  Clock::duration poll_time{};
  // How long a peer may take to answer a greeting.
  Clock::duration handshake_timeout{};
  // The receiver fetches parts that have more bytes than this (rendezvous). 0: UCX decides.
  uint64_t rendezvous = 0;
  // The types of devices whose memory UCX moves, by torch's name, each with UCX's name of that memory: "cuda", "cuda".
  std::map<std::string, std::string> device_memory;
  // With which this worker proves who it is. Null: workers have no certificates.
  std::shared_ptr<const Certificates> certificates;
};

struct Credentials {
  wire::Proof our_proof{};    // what this worker sends to the peer
  wire::Proof their_proof{};  // what the peer sends to this worker
  Process process;
  uint64_t max_message = UINT64_MAX;  // the peer's limit for one message, in bytes
  // With certificates: whose they must be, and what each side signs in its greetings.
  std::string identity;
  std::string our_statement, their_statement;
};

struct Counters {
  std::atomic<uint64_t> messages_sent{0}, messages_received{0};
  std::atomic<uint64_t> connections{0};  // opened by this worker
  std::atomic<uint64_t> peers_lost{0}, peers_found{0};
  std::atomic<uint64_t> refused{0};       // greetings without a valid proof
  std::atomic<uint64_t> rejected{0};      // links ended for invalid data
  std::atomic<uint64_t> dropped{0};       // messages with an unknown token
  std::atomic<uint64_t> device_bytes{0};  // received in memory of devices
  std::atomic<uint64_t> sleeps{0};        // how often a thread has slept until data came
};

}  // namespace rpc_backends::ucx
