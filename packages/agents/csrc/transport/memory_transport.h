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

  std::string listen(int self, const std::string& name) override;
  void learn(int peer, const std::string& name, const std::string& address) override;
  void forget(int peer) override;
  void send(int peer, Parts parts, bool reply) override;
  bool receive(Event& event) override { return events_->pop(event); }
  void reject(int peer, const std::string& reason) override;
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
