// What Links keeps of one peer, and of one payload that is being received.
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "links.h"
#include "wire.h"

namespace rpc_backends::ucx {

struct Links::Link {
  Link(int id, uint64_t max_message) : peer(id), incoming(max_message) {}

  const int peer;
  std::string address;
  Credentials credentials;

  // To the peer.
  ucp_ep_h endpoint = nullptr;
  wire::Token token;
  uint64_t next_number = 0;
  bool is_confirmed = false;
  std::deque<std::unique_ptr<Outgoing>> queue;  // of messages, until the link is confirmed
  uint64_t attempt = 0;                         // names the current link or attempt
  int failures = 0;
  bool is_lost = false;
  bool is_broken = false;  // memory was short, so the link must end
  std::string reason;

  // From the peer.
  wire::Token their_token;
  Incoming incoming;

  std::unique_ptr<Fd> process;
  uint64_t process_id = 0;
};

// A payload that is being received.
struct Links::Fetch {
  Links* links;
  int peer;
  wire::Token token;
  Incoming::Target target;
};

inline std::string called(int peer) {
  return "worker " + std::to_string(peer);
}

}  // namespace rpc_backends::ucx
