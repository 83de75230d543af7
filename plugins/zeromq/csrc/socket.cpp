#include "socket.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace rpc_backends::zeromq {

namespace {

[[noreturn]] void fail(const std::string& what) {
  throw TransportError("ZeroMQ cannot " + what + ": " + text_of(errno));
}

// Descriptors that listening opens: the socket, and one to list this host's addresses.
constexpr int kFilesToListen = 4;

// Throws if the process cannot open the descriptors that libzmq needs, where libzmq would abort.
void check_that_files_can_be_opened(int count) {
  std::vector<int> files;
  for (int i = 0; i < count; ++i) {
    files.push_back(eventfd(0, EFD_CLOEXEC));
  }
  const int error = files.back() == -1 ? errno : 0;
  for (const int file : files) {
    if (file != -1) {
      ::close(file);
    }
  }
  if (error != 0) {
    errno = error;
    fail("start");
  }
}

}  // namespace

Context::Context(int io_threads) {
  check_that_files_can_be_opened(8 + 2 * io_threads);
  context_ = zmq().ctx_new();
  if (context_ == nullptr) {
    fail("start");
  }
  zmq().ctx_set(context_, context_option::kIoThreads, io_threads);
  // Each outgoing connection needs three.
  constexpr int enough = 16384;
  const int most = zmq().ctx_get(context_, context_option::kSocketLimit);
  zmq().ctx_set(context_, context_option::kMaxSockets, std::min(most, enough));
  zmq().ctx_set(context_, context_option::kBlocky, 0);
}

Context::~Context() {
  while (zmq().ctx_term(context_) != 0 && errno == EINTR) {
  }
}

Socket::Socket(Context& context, int type) : socket_(zmq().socket(context.raw(), type)) {
  if (socket_ == nullptr) {
    fail("open a socket");
  }
  set(option::kLinger, 0);
  set(option::kSndHwm, 0);
  set(option::kRcvHwm, 0);
}

Socket::~Socket() {
  if (socket_ != nullptr) {
    zmq().close(socket_);
  }
}

void Socket::set(int option, const void* value, size_t size) {
  if (zmq().setsockopt(socket_, option, value, size) != 0) {
    fail("set option " + std::to_string(option));
  }
}

void Socket::set(int option, int value) {
  set(option, &value, sizeof value);
}

void Socket::set(int option, int64_t value) {
  set(option, &value, sizeof value);
}

void Socket::set(int option, const std::string& value) {
  set(option, value.data(), value.size());
}

void Socket::watch_for_silence(const Settings& settings) {
  const int longest = milliseconds(settings.heartbeat_timeout);
  set(option::kHeartbeatIvl, milliseconds(settings.heartbeat));
  set(option::kHeartbeatTimeout, longest);
  set(option::kHeartbeatTtl, longest);
  // libzmq neither sends nor expects heartbeats while earlier data is still unsent. Then only the kernel's timeout
  // applies, which is about 15 minutes by default.
  set(option::kTcpMaxRetransmission, longest);
}

bool Socket::bind(const std::string& endpoint) {
  check_that_files_can_be_opened(kFilesToListen);
  return zmq().bind(socket_, endpoint.c_str()) == 0;
}

bool Socket::connect(const std::string& endpoint) {
  return zmq().connect(socket_, endpoint.c_str()) == 0;
}

bool Socket::monitor(const std::string& endpoint, int events) {
  return zmq().socket_monitor(socket_, endpoint.c_str(), events) == 0;
}

void Socket::end_monitor() {
  zmq().socket_monitor(socket_, nullptr, 0);
}

std::string Socket::last_endpoint() {
  char endpoint[512];
  size_t size = sizeof endpoint;
  if (zmq().getsockopt(socket_, option::kLastEndpoint, endpoint, &size) != 0) {
    fail("tell where it listens");
  }
  return endpoint;
}

int Socket::fd() {
  int fd = -1;
  size_t size = sizeof fd;
  if (zmq().getsockopt(socket_, option::kFd, &fd, &size) != 0) {
    fail("be waited for");
  }
  return fd;
}

bool Socket::receive(Frame& frame) {
  while (zmq().msg_recv(frame.raw(), socket_, flag::kDontWait) == -1) {
    if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool Socket::send(Frame& frame, bool more) {
  const int flags = flag::kDontWait | (more ? flag::kSndMore : 0);
  while (zmq().msg_send(frame.raw(), socket_, flags) == -1) {
    if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

void Socket::linger(double seconds) {
  const int time = milliseconds(seconds);
  zmq().setsockopt(socket_, option::kLinger, &time, sizeof time);
}

}  // namespace rpc_backends::zeromq
