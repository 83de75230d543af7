// The proofs by which both ends of a TCP connection show that they belong to one group, before UCX reads from it.
//
// The worker that connects sends a Proof. It is valid for one receiver's address and can be used once. The receiver
// answers it with a Tag. Both are keyed hashes (SipHash-2-4, twice, with two keys) under the group's key.
//
// If workers have certificates in place of a secret, all who can read the store can make that key. Then a proof of
// identity.h follows the Proof, and another one the Tag.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

namespace rpc_backends::ucx {

class ConnectionKey {
 public:
  static constexpr size_t kSize = 32;
  using Bytes = std::array<uint64_t, kSize / sizeof(uint64_t)>;
  using Tag = std::array<uint64_t, 2>;

  struct Proof {
    static constexpr uint64_t kMagic = 0x3130'5043'5458'4355;  // "UCXTCP01"

    uint64_t magic = kMagic;
    uint64_t connector = 0;  // a random number of the worker that connects
    uint64_t number = 0;     // 1, 2, 3... of its connections
    Tag tag{};
  };
  static_assert(sizeof(Proof) == 40);

  explicit ConnectionKey(const Bytes& bytes) : bytes_(bytes) {}

  // `receiver`: the text of the receiver's address (text_of_address).
  Proof prove(uint64_t connector, uint64_t number, const std::string& receiver) const;
  bool is_valid(const Proof& proof, const std::string& receiver) const;
  // What a receiver answers to a proof.
  Tag answer_to(const Proof& proof) const;

  // What the owners of certificates sign: the worker that connects, and the receiver.
  std::string connector_states(const Proof& proof, const std::string& receiver) const;
  std::string receiver_states(const Proof& proof) const;

 private:
  Tag tag(const char* purpose, const Proof& proof, const std::string& receiver) const;
  std::string statement(const char* role, const Proof& proof, const std::string& receiver) const;

  const Bytes bytes_;
};

// Compares in constant time.
bool is_same(const ConnectionKey::Tag& left, const ConnectionKey::Tag& right);

// The IP address and the port. Empty for other addresses.
std::string text_of_address(const sockaddr* address);

// Remembers which proofs were used. Proofs may arrive out of order, at most 63 numbers late.
class UsedProofs {
 public:
  // Returns false if the proof was used, or is too old to tell.
  bool use(const ConnectionKey::Proof& proof);

 private:
  struct Window {
    uint64_t highest = 0;
    uint64_t used = 0;  // a bit for each of the last 64 numbers, the highest first
  };
  std::unordered_map<uint64_t, Window> by_connector_;
};

}  // namespace rpc_backends::ucx
