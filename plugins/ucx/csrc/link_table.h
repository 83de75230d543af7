// The links of this worker: by peer, by the token that the peer's messages carry, and by the proof in the peer's
// greetings. Needs the transport's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "link.h"

namespace rpc_backends::ucx {

class LinkTable {
 public:
  // `max_message`: as in Settings.
  explicit LinkTable(uint64_t max_message) : max_message_(max_message) {}

  // Each returns null if there is no such link.
  Link* find(int peer) const;
  // Only if it has had no other attempt since: see renew().
  Link* find(int peer, uint64_t attempt) const;
  Link* of_token(const wire::Token& token) const;
  Link* of_proof(const std::string& proof) const;

  Link& add(int peer);
  void remove(const Link& link);
  // Gives the link to another process of its peer.
  void set_process(Link& link, std::string address, Credentials credentials);
  void set_token(Link& link, const wire::Token& token);
  void clear_token(Link& link);
  // Begins another attempt, so that timers of the former one find nothing.
  void renew(Link& link) { link.attempt = next_attempt_++; }

  // Memory is short, so that the link must end. It may be null.
  void mark_broken(Link* link) noexcept;
  bool has_broken() const { return has_broken_; }
  // Call it when links that were broken have ended.
  void update_broken();

  auto begin() const { return links_.begin(); }
  auto end() const { return links_.end(); }

 private:
  struct TokenHash {
    size_t operator()(const wire::Token& token) const { return static_cast<size_t>(token.low ^ token.high); }
  };

  const uint64_t max_message_;
  std::unordered_map<int, std::unique_ptr<Link>> links_;
  std::unordered_map<wire::Token, int, TokenHash> tokens_;
  std::unordered_map<std::string, int> proofs_;
  uint64_t next_attempt_ = 1;
  bool has_broken_ = false;
};

}  // namespace rpc_backends::ucx
