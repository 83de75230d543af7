// What two workers exchange on a new connection before any message: over TCP, after the handshake of TLS.
//
//   the connecting side sends   a greeting: its id and, on a Unix socket or with certificates, its proof
//   the listening side answers  with its own proof, or with a refusal
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "settings.h"

namespace rpc_backends::zeromq {

// The last byte is the version.
inline constexpr char kForm[8] = {'R', 'P', 'C', 'Z', 'M', 'Q', 0, 3};

struct Greeting {
  char form[8];
  int32_t worker;
  uint32_t lane;  // 0 for the first connection of a link; the number of one that carries pieces only
  uint64_t time;  // of the link: nanoseconds since 1970, later than that of every earlier one of this process
  char proof[kProofSize];
};
static_assert(sizeof(Greeting) == 56);

struct Answer {
  char form[8];
  uint32_t is_admitted;
  uint32_t text_size;  // bytes of the refusal's reason, which follows
  char proof[kProofSize];
};
static_assert(sizeof(Answer) == 48);

inline constexpr const char* kOtherVersion = "the connecting process is not a worker of this version";
inline constexpr const char* kOneEncrypts = "one side encrypts and the other does not";

inline constexpr const char* kEnded = "the connection ended during the handshake";

inline constexpr const char* kEndedOrRefused =
    "the connection ended during the handshake. If the other worker does not accept the certificate of this one, its "
    "log says why";
inline constexpr const char* kRevoked = "its certificate is revoked";

inline void set_proof(char (&place)[kProofSize], const std::string& proof) {
  std::copy_n(proof.data(), std::min(proof.size(), kProofSize), place);
}

// Whether data begins as TLS does: with the type of a record, and the version.
inline bool begins_as_tls(const std::string& data) {
  return data.size() >= 2 && data[0] >= 0x14 && data[0] <= 0x17 && data[1] == 3;
}

}  // namespace rpc_backends::zeromq
