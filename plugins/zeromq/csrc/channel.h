// The bytes of one connection: a non-blocking stream socket, here in plain. TlsChannel encrypts.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <memory>
#include <utility>

#include "rpc_backends_agents/fd.h"

namespace rpc_backends::zeromq {

// One thread may read while another one writes. No two threads may read, or write, at the same time.
class Channel {
 public:
  explicit Channel(std::unique_ptr<Fd> fd) : fd_(std::move(fd)) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  virtual ~Channel() = default;

  int fd() const { return fd_->get(); }

  // Returns the number of bytes that were read; 0 at the end of the data. Returns -1 and sets errno on failure, to
  // EAGAIN if no data is there now. `is_drained` is set if no more data is there after what was read.
  virtual ssize_t read(const iovec* places, int count, bool& is_drained);
  ssize_t read(void* data, size_t size);

  // Says that at least `more` bytes will arrive. A socket over TCP becomes readable only when that many are there, or
  // kWake, if the system's buffers are long enough: a thread that is woken for every segment spends more time on that
  // than on reading. The connection's end wakes it in any case.
  virtual void expect(size_t more);

  // Returns how many bytes were taken. Returns -1 and sets errno on failure, to EAGAIN if there is no room now.
  virtual ssize_t write(const iovec* places, int count);

  // Passes all bytes that were taken to the socket. Returns false and sets errno on failure, to EAGAIN if there is no
  // room now.
  virtual bool flush() { return true; }

  // Releases memory that only writing needs. Call it when all bytes were passed on, and no more follow for now.
  virtual void trim() {}

  // Tells the other side that no more bytes follow.
  virtual void finish();

 private:
  static constexpr size_t kWake = size_t{256} << 10;

  const std::unique_ptr<Fd> fd_;
  int expected_ = 1;  // bytes
  bool may_expect_ = true;
};

}  // namespace rpc_backends::zeromq
