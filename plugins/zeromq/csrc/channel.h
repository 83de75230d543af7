// The bytes of one connection: a non-blocking stream socket, here in plain. TlsChannel encrypts.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <memory>
#include <utility>

#include "rpc_backends_agents/fd.h"

namespace rpc_backends::zeromq {

// One thread may read while another one writes.
class Channel {
 public:
  explicit Channel(std::unique_ptr<Fd> fd) : fd_(std::move(fd)) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  virtual ~Channel() = default;

  int fd() const { return fd_->get(); }

  // Returns the number of bytes that were read; 0 at the end of the data. Returns -1 and sets errno on failure, to
  // EAGAIN if no data is there now. If fewer bytes were read than the places take, no more are there now.
  virtual ssize_t read(const iovec* places, int count);

  // Returns how many bytes were taken. Returns -1 and sets errno on failure, to EAGAIN if there is no room now.
  virtual ssize_t write(const iovec* places, int count);

  // Passes all bytes that were taken to the socket. Returns false and sets errno on failure, to EAGAIN if there is no
  // room now.
  virtual bool flush() { return true; }

  // Tells the other side that no more bytes follow.
  virtual void finish();

 private:
  const std::unique_ptr<Fd> fd_;
};

}  // namespace rpc_backends::zeromq
