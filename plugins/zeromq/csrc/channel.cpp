#include "channel.h"

#include <sys/socket.h>

#include <cerrno>

namespace rpc_backends::zeromq {

ssize_t Channel::read(const iovec* places, int count) {
  ssize_t got = 0;
  do {
    got = ::readv(fd(), places, count);
  } while (got == -1 && errno == EINTR);
  return got;
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
