#include "source.h"

#include <new>
#include <utility>

namespace rpc_backends::zeromq {

namespace {

// Messages that one thread reads in one go, so that other sockets are not delayed.
constexpr int kBatch = 32;

}  // namespace

void SocketSource::pump() {
  drain(Lock(mutex_));
}

void SocketSource::drain(Lock lock) {
  Read read;
  bool more = true;
  for (int i = 0; more && i < kBatch && !read.piece; ++i) {
    if (!socket_) {
      return;
    }
    try {
      read = read_one();
    } catch (const std::bad_alloc&) {
      ++counters_.dropped;
      read.kind = Read::Kind::kDone;
    }
    more = read.kind != Read::Kind::kEmpty;
  }
  if (more) {
    inbox_.again(id_);
  }
  if (!read.piece) {
    return;
  }
  ++putting_;
  lock.unlock();
  try {
    if (std::optional<Parts> parts = read.piece->put()) {
      push(read.peer, std::move(*parts));
    }
  } catch (const std::bad_alloc&) {
    ++counters_.dropped;
  }
  lock.lock();
  if (--putting_ == 0) {
    put_.notify_all();
  }
}

void SocketSource::finish_pieces(Lock& lock) {
  put_.wait(lock, [this] { return putting_ == 0; });
}

void SocketSource::settle(Lock lock) {
  if (!inbox_.again_after_events(id_)) {
    drain(std::move(lock));
  }
}

void SocketSource::enter(Socket socket) {
  fd_ = socket.fd();
  socket_.emplace(std::move(socket));
  id_ = inbox_.add(fd_, weak_from_this());
}

std::optional<Socket> SocketSource::leave() {
  std::optional<Socket> socket;
  if (socket_) {
    inbox_.remove(id_, fd_);
    // No events from here on: nobody reads them, and libzmq's thread would block for ever on the next one.
    socket_->end_monitor();
    socket.emplace(std::move(*socket_));
    socket_.reset();
  }
  return socket;
}

void SocketSource::push(int peer, Parts parts) {
  ++counters_.messages_received;
  Event event;
  event.peer = peer;
  event.parts = std::move(parts);
  inbox_.push(std::move(event));
}

}  // namespace rpc_backends::zeromq
