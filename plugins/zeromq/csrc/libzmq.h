// The part of libzmq's C API that the transport uses. It is loaded at run time from pyzmq's libzmq, so the process
// has only one libzmq, and installing needs neither libzmq nor its headers.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace rpc_backends::zeromq {

// A zmq_msg_t, whose size libzmq guarantees.
struct alignas(void*) RawMessage {
  unsigned char opaque[64];
};

using FreeFunction = void (*)(void* data, void* hint);

struct Library {
  void (*version)(int*, int*, int*);
  int (*has)(const char*);
  const char* (*strerror)(int);
  void* (*ctx_new)();
  int (*ctx_set)(void*, int, int);
  int (*ctx_get)(void*, int);
  int (*ctx_shutdown)(void*);
  int (*ctx_term)(void*);
  void* (*socket)(void*, int);
  int (*close)(void*);
  int (*setsockopt)(void*, int, const void*, size_t);
  int (*getsockopt)(void*, int, void*, size_t*);
  int (*bind)(void*, const char*);
  int (*connect)(void*, const char*);
  int (*socket_monitor)(void*, const char*, int);
  int (*msg_init)(RawMessage*);
  int (*msg_init_size)(RawMessage*, size_t);
  int (*msg_init_data)(RawMessage*, void*, size_t, FreeFunction, void*);
  int (*msg_send)(RawMessage*, void*, int);
  int (*msg_recv)(RawMessage*, void*, int);
  int (*msg_close)(RawMessage*);
  int (*msg_move)(RawMessage*, RawMessage*);
  void* (*msg_data)(RawMessage*);
  size_t (*msg_size)(const RawMessage*);
  int (*msg_more)(const RawMessage*);
  int (*msg_get)(const RawMessage*, int);
  const char* (*msg_gets)(const RawMessage*, const char*);
  int (*curve_keypair)(char*, char*);
  char* (*z85_encode)(char*, const unsigned char*, size_t);

  std::string version_text() const;
  bool has_curve() const { return has("curve") == 1; }
};

// Loads the functions from the first of `files` that provides them, directly or through a library that it has
// loaded. Throws TransportError. Only the first call has an effect.
void load_library(const std::vector<std::string>& files);

// Call load_library() first.
const Library& zmq();

// Returns libzmq's text for `error`, which may be an error of libzmq's own.
std::string text_of(int error);

// Constants of the API. Each is documented under its name with the prefix ZMQ_.
namespace socket_type {
inline constexpr int kPair = 0, kDealer = 5, kRouter = 6;
}

namespace context_option {
inline constexpr int kIoThreads = 1, kMaxSockets = 2, kSocketLimit = 3, kBlocky = 70;
}

namespace option {
inline constexpr int kRoutingId = 5, kFd = 14, kLinger = 17, kReconnectIvl = 18, kBacklog = 19, kMaxMsgSize = 22,
                     kSndHwm = 23, kRcvHwm = 24, kLastEndpoint = 32, kRouterMandatory = 33, kIpv6 = 42,
                     kCurveServer = 47, kCurvePublicKey = 48, kCurveSecretKey = 49, kCurveServerKey = 50,
                     kProbeRouter = 51, kZapDomain = 55, kHandshakeIvl = 66, kHeartbeatIvl = 75, kHeartbeatTtl = 76,
                     kHeartbeatTimeout = 77, kConnectTimeout = 79, kTcpMaxRetransmission = 80;
}

namespace message_option {
inline constexpr int kSourceFd = 2;
}

namespace flag {
inline constexpr int kDontWait = 1, kSndMore = 2;
}

namespace monitor_event {
inline constexpr int kConnected = 0x1, kConnectRetried = 0x4, kListening = 0x8, kAccepted = 0x20, kAcceptFailed = 0x40,
                     kDisconnected = 0x200, kHandshakeFailed = 0x800, kHandshakeSucceeded = 0x1000,
                     kHandshakeFailedProtocol = 0x2000, kHandshakeFailedAuth = 0x4000;
}

// The values of kHandshakeFailedProtocol.
namespace protocol_error {
inline constexpr int kCryptographic = 0x11000001, kMechanismMismatch = 0x11000002;
}

}  // namespace rpc_backends::zeromq
