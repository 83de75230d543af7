#include "link_table.h"

#include <algorithm>
#include <utility>

namespace rpc_backends::ucx {

using namespace wire;

Link* LinkTable::find(int peer) const {
  const auto known = links_.find(peer);
  return known == links_.end() ? nullptr : known->second.get();
}

Link* LinkTable::find(int peer, uint64_t attempt) const {
  Link* const link = find(peer);
  return link != nullptr && link->attempt == attempt ? link : nullptr;
}

Link* LinkTable::of_token(const Token& token) const {
  const auto known = tokens_.find(token);
  return known == tokens_.end() ? nullptr : find(known->second);
}

Link* LinkTable::of_proof(const std::string& proof) const {
  const auto known = proofs_.find(proof);
  return known == proofs_.end() ? nullptr : find(known->second);
}

Link& LinkTable::add(int peer) {
  return *links_.emplace(peer, std::make_unique<Link>(peer, max_message_)).first->second;
}

void LinkTable::remove(const Link& link) {
  tokens_.erase(link.their_token);
  // Not by its key, which would need memory.
  std::erase_if(proofs_, [&link](const auto& entry) { return entry.second == link.peer; });
  links_.erase(link.peer);
}

void LinkTable::set_process(Link& link, std::string address, Credentials credentials) {
  const std::string former = text_of(link.credentials.their_proof), proof = text_of(credentials.their_proof);
  proofs_[proof] = link.peer;  // may throw; then the link is as it was
  if (const auto known = proofs_.find(former);
      former != proof && known != proofs_.end() && known->second == link.peer) {
    proofs_.erase(known);
  }
  if (link.address != address) {
    link.opened = 0;
  }
  link.address = std::move(address);
  link.credentials = std::move(credentials);
  link.their_number = 0;
  link.subject = {};
  link.certificates = {};
}

void LinkTable::set_token(Link& link, const Token& token) {
  clear_token(link);
  tokens_[token] = link.peer;  // may throw; then a later greeting is new again
  link.their_token = token;
}

void LinkTable::clear_token(Link& link) {
  tokens_.erase(link.their_token);
  link.their_token = Token();
}

void LinkTable::mark_broken(Link* link) noexcept {
  if (link != nullptr) {
    link->is_broken = true;
    has_broken_ = true;
  }
}

void LinkTable::update_broken() {
  has_broken_ = std::any_of(begin(), end(), [](const auto& entry) { return entry.second->is_broken; });
}

}  // namespace rpc_backends::ucx
