// One frame of a ZeroMQ message: memory with a reference count, owned by libzmq.
#pragma once

#include <cstddef>
#include <memory>

#include "libzmq.h"
#include "rpc_backends_agents/transport.h"

namespace rpc_backends::zeromq {

class Frame {
 public:
  Frame() { zmq().msg_init(&message_); }

  // Throws std::bad_alloc.
  explicit Frame(size_t size);

  // Copies `data`.
  Frame(const void* data, size_t size) { copy(data, size); }

  // Makes a frame that uses the memory of `part`. Its owner is released, on any thread, once the frame is sent. A
  // part without an owner is copied, because nothing keeps it alive.
  explicit Frame(const Part& part) : Frame(part, part.data, part.size) {}

  // The same for a piece of `part`.
  Frame(const Part& part, const void* data, size_t size);

  ~Frame() { zmq().msg_close(&message_); }

  Frame(Frame&& other) noexcept : Frame() { zmq().msg_move(&message_, &other.message_); }
  Frame& operator=(Frame&& other) noexcept {
    zmq().msg_move(&message_, &other.message_);
    return *this;
  }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  char* data() { return static_cast<char*>(zmq().msg_data(&message_)); }
  size_t size() const { return zmq().msg_size(&message_); }
  bool more() const { return zmq().msg_more(&message_) != 0; }

  // A property of the connection on which the frame arrived; null if libzmq has none.
  const char* property(const char* name) const { return zmq().msg_gets(&message_, name); }

  // The descriptor of the connection on which the frame arrived; -1 if libzmq does not know it.
  int source() const { return zmq().msg_get(&message_, message_option::kSourceFd); }

  RawMessage* raw() { return &message_; }

 private:
  void copy(const void* data, size_t size);

  RawMessage message_;
};

// Returns the memory of a frame as a part.
Part part_of(Frame frame);

// Returns a copy, aligned to 16 bytes so that any tensor can use it.
Part copy_of(const void* data, size_t size);

}  // namespace rpc_backends::zeromq
