#include "transport/memory_transport.h"

#include <atomic>

#include "wire/codec.h"

namespace rpc_backends {

namespace {

std::mutex listening_mutex;
std::unordered_map<std::string, std::weak_ptr<EventQueue>>& listening() {
  // Never destroyed: a transport may be closed while the process exits.
  static auto* const all = new std::unordered_map<std::string, std::weak_ptr<EventQueue>>();
  return *all;
}

}  // namespace

Text MemoryTransport::listen(int self, std::string_view name) {
  static std::atomic<uint64_t> count{0};
  std::lock_guard<std::mutex> mine(mutex_);
  self_ = self;
  address_ = "memory:" + std::string(name) + ":" + std::to_string(count++);
  std::lock_guard<std::mutex> lock(listening_mutex);
  listening()[address_] = events_;
  return address_;
}

void MemoryTransport::learn(int peer, std::string_view /*name*/, std::string_view address) {
  std::lock_guard<std::mutex> lock(mutex_);
  peers_[peer] = address;
}

void MemoryTransport::forget(int peer) {
  std::lock_guard<std::mutex> lock(mutex_);
  peers_.erase(peer);
}

std::shared_ptr<EventQueue> MemoryTransport::queue_of(int peer) {
  std::string address;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto learned = peers_.find(peer);
    if (learned == peers_.end()) {
      throw TransportError("the address of worker " + std::to_string(peer) + " is not known");
    }
    address = learned->second;
  }
  std::lock_guard<std::mutex> lock(listening_mutex);
  const auto listener = listening().find(address);
  auto queue = listener == listening().end() ? nullptr : listener->second.lock();
  if (!queue) {
    throw TransportError("no worker listens at " + address);
  }
  return queue;
}

void MemoryTransport::send(int peer, Parts parts, bool /*reply*/) {
  queue_of(peer)->push({Event::Kind::kMessage, self_, copy(parts), {}});
}

void MemoryTransport::reject(int peer, std::string_view reason) {
  events_->push({Event::Kind::kLost, peer, {}, reason});
}

void MemoryTransport::close(double /*linger*/) {
  {
    std::lock_guard<std::mutex> lock(listening_mutex);
    listening().erase(address_);
  }
  events_->close();
}

}  // namespace rpc_backends
