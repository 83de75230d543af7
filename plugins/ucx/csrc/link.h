// What the links know about one peer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "identity.h"
#include "incoming.h"
#include "outgoing.h"
#include "settings.h"
#include "ucp.h"
#include "wire.h"

namespace rpc_backends::ucx {

struct Link {
  Link(int id, uint64_t max_message) : peer(id), small(max_message), large(max_message, wire::kFirstLarge) {}

  const int peer;
  std::string address;
  Credentials credentials;

  // To the peer.
  ucp_ep_h endpoint = nullptr;
  uint64_t opened = 0;            // endpoints to this address so far
  ucp_ep_h bulk = nullptr;        // over a network: a connection of its own for large messages, from the first one on
  std::vector<ucp_ep_h> skipped;  // over a network: see Opening::skip_endpoints()
  wire::Token token;
  uint64_t next_small = 0, next_large = wire::kFirstLarge;
  bool is_confirmed = false;
  bool is_networked = false;  // not in shared memory; known once it is confirmed
  Messages queue;             // until the link is confirmed
  uint64_t attempt = 0;       // names the current link or attempt
  int failures = 0;
  bool is_lost = false;
  bool is_broken = false;  // memory was short, so the link must end: see Links::end_broken()
  bool is_final = false;   // this worker does not try to reach the lost peer
  std::string reason;

  // From the peer.
  wire::Token their_token;
  // With certificates: the number of the last greeting, with this token while there is one, and whose certificate it
  // was.
  uint64_t their_number = 0;
  Subject subject;
  Identity::Digest certificates{};
  uint32_t goodbyes = 0;  // copies of the peer's goodbye that have come
  Incoming small, large;

  Incoming& incoming(uint64_t number) { return number < wire::kFirstLarge ? small : large; }
};

inline std::string called(int peer) {
  return "worker " + std::to_string(peer);
}

}  // namespace rpc_backends::ucx
