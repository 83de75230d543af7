// What workers with certificates prove to each other when a connection opens, on TCP before UCX reads anything, and in
// greetings: each side signs what it says, with the key of its certificate. Any thread may use it.
//
// A proof has the signer's certificates, a hash of the other side's certificates, and a signature over both and over a
// statement, which the two sides know already: the role of the signer, the group, the names and sessions of both, and
// numbers that are used once. So a proof of another side, connection, session or group is no proof.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rpc_backends_agents/openssl/certificates.h"

namespace rpc_backends::ucx {

class Identity {
 public:
  // SHA-256 of the certificates of one worker; all zero: not known yet.
  using Digest = std::array<char, 32>;

  struct Head {
    uint32_t certificates = 0, signature = 0;  // bytes of each
    Digest other{};                            // of the side to which the proof is shown
  };
  static_assert(sizeof(Head) == 40);
  static constexpr size_t kLongestSignature = 1024;
  static constexpr size_t kLongest = sizeof(Head) + Certificates::kLongest + kLongestSignature;

  // Throws TransportError.
  explicit Identity(std::shared_ptr<const Certificates> certificates);

  // Later proofs have these certificates. Throws TransportError if they are another worker's.
  void renew(std::shared_ptr<const Certificates> certificates);
  void revoke(const std::vector<std::string>& names) { revoked_.set(names); }
  bool is_revoked(const Subject& subject) const { return revoked_.covers(subject); }

  // Throws TransportError.
  std::string prove(std::string_view statement, const Digest& other) const;

  struct Proved {
    Subject subject;
    Digest certificates{};
  };
  // Checks a proof of the other side. `knows_us`: whether the other side must have seen certificates of this worker.
  // Throws TransportError with the reason against it.
  Proved check(std::string_view proof, std::string_view statement, bool knows_us) const;

  // Returns the size of the proof that begins with these bytes (of a Head at least); nullopt if it is out of bounds.
  static std::optional<size_t> size_of(std::string_view begin);

 private:
  bool is_ours(const Digest& digest) const;

  mutable std::mutex mutex_;
  std::shared_ptr<const Certificates> certificates_;
  std::vector<Digest> ours_;  // of all certificates that this worker has shown
  Revoked revoked_;
};

}  // namespace rpc_backends::ucx
