// The transport over ZeroMQ: its parts, put together. See each for what it does and why.
//
//   send(reply=false)  Peers ─▶ TcpConnection ══════▶ peer's TcpListener        a connection of ours: requests, their answers
//   send(reply=true)   TcpListener  ══════════════▶ peer's TcpConnection        a connection of the peer's: its requests
//   receive()          Inbox ◀─ TcpConnection, TcpListener                      read by the threads that wait
//   on one host        UnixConnection for TcpConnection, UnixListener for TcpListener: no ZeroMQ, UnixStream at both ends
//   EventLoop             one thread: monitors of connections, who may connect (Zap), trials to reach lost peers
//   CallbackThread              one thread: the owner's callbacks
//   Releaser           one thread: lets go of memory that was sent
//
// Who waits for an answer has made the connection by which it comes, and sees it end.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tcp_listener.h"
#include "gate.h"
#include "peers.h"
#include "unix_listener.h"
#include "releaser.h"
#include "zap.h"

namespace rpc_backends::zeromq {

class ZeroMQTransport : public Transport {
 public:
  // load_library() goes before. Throws TransportError.
  ZeroMQTransport(const Settings& settings, CallbackThread::OnUnknownKey on_unknown_key, CallbackThread::OnRefused on_refused);
  ~ZeroMQTransport() override;

  // Returns the endpoints with the ports that the system has chosen. Throws BindError.
  std::vector<std::string> bind(const std::vector<std::string>& endpoints);
  void start(int self);
  void learn_endpoint(int peer, const std::string& endpoint, const Credentials& credentials);
  Inbox::Outcome receive_until(Event& event, Clock::time_point deadline);

  // For those who bring no addresses of their own: starts, and returns "ENDPOINT KEY" of the first that was
  // bound, or "" if none was.
  std::string listen(int self, const std::string& name) override;
  void learn(int peer, const std::string& name, const std::string& address) override;
  void forget(int peer) override;
  void send(int peer, Parts parts, bool reply) override;
  bool receive(Event& event) override;
  void reject(int peer, const std::string& reason) override;
  void close(double linger) override;
  std::map<std::string, std::string> metrics() const override;

 private:
  struct Impl;

  void check() const;
  bool is_forked() const;

  const std::shared_ptr<const Settings> settings_;
  const std::shared_ptr<Counters> counters_ = std::make_shared<Counters>();
  const unsigned forks_;
  Gate gate_;
  std::mutex close_mutex_;
  std::unique_ptr<Impl> impl_;  // until it is closed
  std::string address_;
};

}  // namespace rpc_backends::zeromq
