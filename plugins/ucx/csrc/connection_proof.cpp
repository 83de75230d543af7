#include "connection_proof.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>

#include "rpc_backends_agents/siphash.h"

namespace rpc_backends::ucx {

ConnectionKey::Tag ConnectionKey::tag(const char* purpose, const Proof& proof, const std::string& receiver) const {
  Tag tag;
  for (size_t i = 0; i < tag.size(); ++i) {
    SipHash hash(bytes_[2 * i], bytes_[2 * i + 1]);
    hash.add(purpose);
    hash.add_number(proof.connector);
    hash.add_number(proof.number);
    hash.add(receiver);
    tag[i] = hash.finish();
  }
  return tag;
}

ConnectionKey::Proof ConnectionKey::prove(uint64_t connector, uint64_t number, const std::string& receiver) const {
  Proof proof;
  proof.connector = connector;
  proof.number = number;
  proof.tag = tag("connect", proof, receiver);
  return proof;
}

bool ConnectionKey::is_valid(const Proof& proof, const std::string& receiver) const {
  return proof.magic == Proof::kMagic && is_same(proof.tag, tag("connect", proof, receiver));
}

ConnectionKey::Tag ConnectionKey::answer_to(const Proof& proof) const {
  return tag("accept", proof, {});
}

std::string ConnectionKey::statement(const char* role, const Proof& proof, const std::string& receiver) const {
  std::string text = role;  // none of the two begins with the other one
  text.append(reinterpret_cast<const char*>(bytes_.data()), sizeof bytes_);
  text.append(reinterpret_cast<const char*>(&proof), sizeof proof);
  return text + receiver;
}

std::string ConnectionKey::connector_states(const Proof& proof, const std::string& receiver) const {
  return statement("connect", proof, receiver);
}

std::string ConnectionKey::receiver_states(const Proof& proof) const {
  return statement("accept", proof, {});
}

bool is_same(const ConnectionKey::Tag& left, const ConnectionKey::Tag& right) {
  const volatile uint64_t difference = (left[0] ^ right[0]) | (left[1] ^ right[1]);
  return difference == 0;
}

std::string text_of_address(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  uint16_t port = 0;
  if (address->sa_family == AF_INET) {
    sockaddr_in internet{};
    std::memcpy(&internet, address, sizeof internet);
    inet_ntop(AF_INET, &internet.sin_addr, text, sizeof text);
    port = ntohs(internet.sin_port);
  } else if (address->sa_family == AF_INET6) {
    sockaddr_in6 internet{};
    std::memcpy(&internet, address, sizeof internet);
    inet_ntop(AF_INET6, &internet.sin6_addr, text, sizeof text);
    port = ntohs(internet.sin6_port);
  } else {
    return {};
  }
  return std::string(text) + " port " + std::to_string(port);
}

bool UsedProofs::use(const ConnectionKey::Proof& proof) {
  constexpr uint64_t kBits = 64;
  Window& window = by_connector_[proof.connector];
  if (proof.number > window.highest) {
    const uint64_t step = proof.number - window.highest;
    window.used = (step >= kBits ? 0 : window.used << step) | 1;
    window.highest = proof.number;
    return true;
  }
  const uint64_t age = window.highest - proof.number;
  const uint64_t bit = age >= kBits ? 0 : uint64_t{1} << age;
  if (bit == 0 || (window.used & bit) != 0) {
    return false;
  }
  window.used |= bit;
  return true;
}

}  // namespace rpc_backends::ucx
