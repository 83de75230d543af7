// A stand-in for libzmq in one process: what a socket sends is what the next one receives. For tests of what makes and
// reads frames; a program includes this once, in place of libzmq.cpp and socket.cpp.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <utility>

#include "libzmq.h"
#include "socket.h"

// Marks what is no code under test, whose branches a fuzzer must not explore.
#ifdef __clang__
#define FUZZER __attribute__((no_sanitize("coverage")))
#else
#define FUZZER
#endif

namespace rpc_backends::zeromq {

namespace {

// A frame. It is in the first bytes of a RawMessage.
struct Memory {
  char* bytes;
  size_t size;
  FreeFunction free;
  void* hint;
  bool more;
};
static_assert(sizeof(Memory) <= sizeof(RawMessage));

Memory& memory_of(const RawMessage* raw) {
  return *reinterpret_cast<Memory*>(const_cast<RawMessage*>(raw));
}

void drop_memory(void* data, void* /*hint*/) {
  std::free(data);
}

// The block has exactly the frame's size, so that the sanitizer sees a read beyond it.
FUZZER void make_memory(RawMessage* raw, const void* data, size_t size, bool more) {
  auto* const bytes = static_cast<char*>(std::malloc(size));
  if (size > 0 && data != nullptr) {
    std::memcpy(bytes, data, size);
  }
  memory_of(raw) = {bytes, size, drop_memory, nullptr, more};
}

FUZZER int close_memory(RawMessage* raw) {
  Memory& memory = memory_of(raw);
  if (memory.free != nullptr) {
    memory.free(memory.bytes, memory.hint);
  }
  memory = {};
  return 0;
}

struct Wire {
  struct Sent {
    std::string bytes;
    bool more;
  };
  std::deque<Sent> frames;
};

Wire wire;

FUZZER int receive_frame(RawMessage* raw, void* /*socket*/, int /*flags*/) {
  if (wire.frames.empty()) {
    errno = EAGAIN;
    return -1;
  }
  close_memory(raw);
  const Wire::Sent& next = wire.frames.front();
  make_memory(raw, next.bytes.data(), next.bytes.size(), next.more);
  wire.frames.pop_front();
  return 0;
}

FUZZER int send_frame(RawMessage* raw, void* /*socket*/, int flags) {
  const Memory& memory = memory_of(raw);
  wire.frames.push_back({std::string(memory.bytes, memory.size), (flags & flag::kSndMore) != 0});
  close_memory(raw);
  return 0;
}

Library make_library() {
  Library made{};
  made.socket = [](void*, int) -> void* { return &wire; };
  made.close = [](void*) { return 0; };
  made.setsockopt = [](void*, int, const void*, size_t) { return 0; };
  made.msg_init = [](RawMessage* raw) {
    memory_of(raw) = {};
    return 0;
  };
  made.msg_init_size = [](RawMessage* raw, size_t size) {
    make_memory(raw, nullptr, size, false);
    return 0;
  };
  made.msg_init_data = [](RawMessage* raw, void* data, size_t size, FreeFunction free, void* hint) {
    memory_of(raw) = {static_cast<char*>(data), size, free, hint, false};
    return 0;
  };
  made.msg_send = send_frame;
  made.msg_recv = receive_frame;
  made.msg_close = close_memory;
  made.msg_move = [](RawMessage* to, RawMessage* from) {
    if (to != from) {
      close_memory(to);
      std::swap(memory_of(to), memory_of(from));
    }
    return 0;
  };
  made.msg_data = [](RawMessage* raw) -> void* { return memory_of(raw).bytes; };
  made.msg_size = [](const RawMessage* raw) { return memory_of(raw).size; };
  made.msg_more = [](const RawMessage* raw) { return memory_of(raw).more ? 1 : 0; };
  return made;
}

}  // namespace

const Library& zmq() {
  static const Library library = make_library();
  return library;
}

Context::Context(int /*io_threads*/) : context_(nullptr) {}
Context::~Context() = default;

Socket::Socket(Context& context, int type) : socket_(zmq().socket(context.raw(), type)) {}
Socket::~Socket() = default;

bool Socket::receive(Frame& frame) {
  return zmq().msg_recv(frame.raw(), socket_, flag::kDontWait) != -1;
}

bool Socket::send(Frame& frame, bool more) {
  return zmq().msg_send(frame.raw(), socket_, more ? flag::kSndMore : 0) != -1;
}

}  // namespace rpc_backends::zeromq
