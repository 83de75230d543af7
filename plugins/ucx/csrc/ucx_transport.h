// The UCX transport, built from parts. Each part's header says what it does and why.
//
//   send()      Links ─▶ Outgoing ═══ UCP active messages ═══▶ the peer's Incoming
//   receive()   Inbox ◀─ Links ◀─ Incoming       the waiting threads make UCX progress
//   CallbackThread   one thread: runs callbacks of the transport's owner
//   Releaser         one thread: releases the memory of sent messages
//
// Requests and replies to a peer use this worker's link to it. If the link ends, this worker opens a new one at once.
// The greeting on the new link tells the peer that answers may be lost.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "connection_proof.h"
#include "inbox.h"
#include "rpc_backends_agents/callback_thread.h"
#include "rpc_backends_agents/gate.h"
#include "rpc_backends_agents/transport.h"
#include "settings.h"

namespace rpc_backends::ucx {

class UcxTransport : public Transport {
 public:
  // Throws TransportError.
  UcxTransport(const Settings& settings, CallbackThread::OnUnknownKey on_unknown_proof,
               CallbackThread::OnRefused on_refused);
  ~UcxTransport() override;

  // The address of UCX's worker, as bytes.
  std::string address() const;
  // `key`: of the group, for connections over TCP.
  void start(int self, const ConnectionKey::Bytes& key);
  void learn_address(int peer, const std::string& address, const Credentials& credentials);
  Inbox::Outcome receive_until(Event& event, Clock::time_point deadline);

  // Unused by workers of a group, which call start() and learn_address() with proofs.
  std::string listen(int self, const std::string& name) override;
  void learn(int peer, const std::string& name, const std::string& address) override;
  void forget(int peer) override;
  void send(int peer, Parts parts, bool reply) override;
  bool receive(Event& event) override;
  void reject(int peer, const std::string& reason) override;
  void close(double linger) override;
  bool moves(const std::string& device_type) const override;
  void set_allocator(DeviceAllocator allocate) override;
  std::map<std::string, std::string> metrics() const override;

 private:
  struct Impl;

  void check() const;
  bool is_forked() const;

  const Settings settings_;
  const std::shared_ptr<Counters> counters_ = std::make_shared<Counters>();
  const unsigned forks_;
  mutable Gate gate_;
  std::mutex close_mutex_;
  std::unique_ptr<Impl> impl_;  // null once it is closed
};

}  // namespace rpc_backends::ucx
