#include "frame.h"

#include <cstring>
#include <new>
#include <utility>

namespace rpc_backends::zeromq {

namespace {

struct alignas(16) Block {
  char bytes[16];
};

void drop(void* /*data*/, void* hint) {
  delete static_cast<std::shared_ptr<void>*>(hint);
}

}  // namespace

Frame::Frame(size_t size) {
  if (zmq().msg_init_size(&message_, size) != 0) {
    throw std::bad_alloc();
  }
}

void Frame::copy(const void* data, size_t size) {
  if (zmq().msg_init_size(&message_, size) != 0) {
    throw std::bad_alloc();
  }
  if (size > 0) {
    std::memcpy(this->data(), data, size);
  }
}

Frame::Frame(const Part& part, const void* data, size_t size) {
  if (!part.owner) {
    copy(data, size);
    return;
  }
  auto hint = std::make_unique<std::shared_ptr<void>>(part.owner);
  // libzmq does not write to it.
  if (zmq().msg_init_data(&message_, const_cast<void*>(data), size, drop, hint.get()) != 0) {
    throw std::bad_alloc();
  }
  (void)hint.release();
}

Part part_of(Frame frame) {
  auto owner = std::make_shared<Frame>(std::move(frame));
  return {owner->data(), owner->size(), owner};
}

Part copy_of(const void* data, size_t size) {
  auto owner = std::make_shared_for_overwrite<Block[]>(size / sizeof(Block) + 1);
  if (size > 0) {
    std::memcpy(owner.get(), data, size);
  }
  return {owner.get(), size, std::move(owner)};
}

}  // namespace rpc_backends::zeromq
