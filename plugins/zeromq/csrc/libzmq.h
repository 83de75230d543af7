// The part of libzmq's C API that the transport uses, found at run time in the library that pyzmq has
// or would load: the process has one libzmq then, and installing needs no libzmq and no headers of it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace rpc_backends::zeromq {

// A zmq_msg_t, which libzmq promises to be of this size for ever.
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

// Takes the functions from the first of `files` that has them, itself or in a library that it has loaded;
// throws TransportError. The first call counts.
void load_library(const std::vector<std::string>& files);

// Only after load_library().
const Library& zmq();

// What `error` means, as libzmq says it: some of its errors are no numbers of the system.
std::string text_of(int error);

// Numbers of the API; each is documented under its name with ZMQ_ in front.
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
inline constexpr int kConnected = 0x1, kConnectRetried = 0x4, kListening = 0x8, kAccepted = 0x20,
                     kAcceptFailed = 0x40, kDisconnected = 0x200, kHandshakeFailed = 0x800,
                     kHandshakeSucceeded = 0x1000, kHandshakeFailedProtocol = 0x2000,
                     kHandshakeFailedAuth = 0x4000;
}

// What comes with kHandshakeFailedProtocol.
namespace protocol_error {
inline constexpr int kCryptographic = 0x11000001, kMechanismMismatch = 0x11000002;
}

}  // namespace rpc_backends::zeromq
