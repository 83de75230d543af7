// The transport, assembled from its parts. Each part's header says what it does and why.
//
//   send(reply=false)  Peers ─▶ Connection ─▶ Stream ══▶ Stream of the peer     our connection: requests and replies
//   send(reply=true)   Listener ─▶ Stream ═════════════▶ Stream of the peer     the peer's connection: its requests
//   receive()          Inbox ◀─ Streams                                         read by the waiting threads
//   Channel            the bytes of a Stream: a Unix socket or TCP; TlsChannel encrypts them
//   Acceptor           accepts connections for the Listener, and finds out who connects
//   EventLoop          one thread: connects, authenticates peers, checks heartbeats, reconnects to lost peers
//   EventLoop          one more thread: goes on writing where a socket was full
//   CallbackThread     one thread: runs the owner's callbacks
//   Releaser           one thread: releases memory that was sent
//
// A worker that waits for a reply has opened the connection on which the reply arrives, so it sees the connection end.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "listener.h"
#include "peers.h"
#include "rpc_backends_agents/gated_transport.h"
#include "rpc_backends_agents/releaser.h"

namespace rpc_backends::zeromq {

class ZeroMQTransport : public GatedTransport {
 public:
  // Throws TransportError.
  ZeroMQTransport(const Settings& settings, CallbackThread::OnUnknownKey on_unknown_key,
                  CallbackThread::OnRefused on_refused);
  ~ZeroMQTransport() override;

  // Returns the endpoints with the ports that the system chose. Throws BindError.
  std::vector<std::string> bind(const std::vector<std::string>& endpoints);
  void start(int self);
  void learn_endpoint(int peer, const std::string& endpoint, const Credentials& credentials);

  // Shows other certificates on new connections. Throws TransportError if they are not of the same identity.
  void renew(const Certificates& certificates);
  // Sets the identities and numbers of certificates that are revoked. Open connections with such certificates end.
  void revoke(const std::vector<std::string>& names);

  // For callers that do not call bind() and start() themselves: starts, and returns "ENDPOINT KEY" of the first
  // endpoint that was bound, or "" if there is none.
  Text listen(int self, std::string_view name) override;
  void learn(int peer, std::string_view name, std::string_view address) override;
  Metrics metrics() const override;

 private:
  struct Impl;

  Impl& impl() const;

  const std::shared_ptr<const Settings> settings_;
  const std::shared_ptr<Counters> counters_ = std::make_shared<Counters>();
  std::string address_;
};

}  // namespace rpc_backends::zeromq
