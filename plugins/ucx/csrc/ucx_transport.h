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

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "connection_proof.h"
#include "identity.h"
#include "rpc_backends_agents/callback_thread.h"
#include "rpc_backends_agents/gated_transport.h"
#include "settings.h"

namespace rpc_backends::ucx {

class UcxTransport : public GatedTransport {
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
  // New connections show other certificates. Throws TransportError if this worker has none, or another identity.
  void renew(std::shared_ptr<const Certificates> certificates);
  // Sets what is revoked: identities, and numbers of certificates. Throws TransportError if this worker has none.
  void revoke(const std::vector<std::string>& names);

  // Unused by workers of a group, which call start() and learn_address() with proofs.
  Text listen(int self, std::string_view name) override;
  void learn(int peer, std::string_view name, std::string_view address) override;
  bool moves(std::string_view device_type) const override;
  void set_allocator(DeviceAllocator allocate) override;
  Metrics metrics() const override;

 private:
  struct Impl;

  Impl& impl() const;
  Identity& identity() const;

  const Settings settings_;
  const std::shared_ptr<Counters> counters_ = std::make_shared<Counters>();
};

}  // namespace rpc_backends::ucx
