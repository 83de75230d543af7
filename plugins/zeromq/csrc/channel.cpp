#include "channel.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace rpc_backends::zeromq {

ssize_t Channel::read(void* data, size_t size) {
  const iovec place{data, size};
  bool is_drained = false;
  return read(&place, 1, is_drained);
}

ssize_t Channel::read(const iovec* places, int count, bool& is_drained) {
  size_t room = 0;
  for (int i = 0; i < count; ++i) {
    room += places[i].iov_len;
  }
  ssize_t got = 0;
  do {
    got = ::readv(fd(), places, count);
  } while (got == -1 && errno == EINTR);
  is_drained = got >= 0 && static_cast<size_t>(got) < room;
  return got;
}

void Channel::expect(size_t more) {
  const int wanted = static_cast<int>(std::clamp(more, size_t{1}, kWake));
  if (wanted == expected_ || !may_expect_) {
    return;
  }
  const auto set = [this](int bytes) {
    int is = 0;
    socklen_t size = sizeof is;
    expected_ = bytes;
    return ::setsockopt(fd(), SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes) == 0 &&
           ::getsockopt(fd(), SOL_SOCKET, SO_RCVLOWAT, &is, &size) == 0 && is == bytes;
  };
  if (!set(wanted)) {
    may_expect_ = false;  // the system's buffers are too short, and a sender must not wait for a thread that sleeps
    set(1);
  }
}

ssize_t Channel::write(const iovec* places, int count) {
  msghdr what{};
  what.msg_iov = const_cast<iovec*>(places);
  what.msg_iovlen = static_cast<size_t>(count);
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(fd(), &what, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent == -1 && errno == EINTR);
  return sent;
}

void Channel::finish() {
  ::shutdown(fd(), SHUT_WR);
}

}  // namespace rpc_backends::zeromq
