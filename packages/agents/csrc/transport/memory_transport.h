// A transport between workers in one process, which send each other copies. For tests, and for a group of one worker.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "rpc_backends_agents/transport.h"

namespace rpc_backends {

class MemoryTransport : public Transport {
 public:
  ~MemoryTransport() override { close(0); }

  Text listen(int self, std::string_view name) override;
  void learn(int peer, std::string_view name, std::string_view address) override;
  void forget(int peer) override;
  void send(int peer, Parts parts, bool reply) override;
  bool receive(Event& event) override { return events_->pop(event); }
  void reject(int peer, std::string_view reason) override;
  void close(double linger) override;

 private:
  std::shared_ptr<EventQueue> queue_of(int peer);

  // The other workers push events to it through a weak pointer.
  std::shared_ptr<EventQueue> events_ = std::make_shared<EventQueue>();
  std::mutex mutex_;
  int self_ = -1;
  std::string address_;
  std::unordered_map<int, std::string> peers_;
};

}  // namespace rpc_backends
