// The peers that this worker calls: where each listens, the connection to it, and what becomes of it when that
// ends. A connection is made at the first message. When it ends the peer is lost, and connections to it are tried in
// the background until one stands.
#pragma once

#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "tcp_connection.h"
#include "unix_connection.h"

namespace rpc_backends::zeromq {

class Peers : private Connection::Listener {
 public:
  Peers(const TcpConnection::Services& services, const UnixStream::Services& unix_services)
      : services_(services), unix_services_(unix_services) {}

  // From now on this worker is known to its peers as `self`.
  void start(int self);
  bool started() const;

  // A peer that is known with other words is lost, and found when it is there.
  void learn(int peer, const Endpoint& endpoint, const Credentials& credentials);
  void forget(int peer);

  // Throws TransportError.
  void send(int peer, Parts parts);

  // Ends the connection to a peer for what came by it.
  void end_connection(int peer, const std::string& reason);

  // There is word of a peer: if it is lost, now is the time to try.
  void hint(int peer);

  // Closes all connections; what was sent has `linger` seconds to leave.
  void close(double linger);

 private:
  struct Peer {
    Endpoint endpoint;
    Credentials credentials;
    std::shared_ptr<Connection> connection;
    bool lost = false;
    std::string reason;
    int failures = 0;    // in a row
    uint64_t loss = 0;   // the last one, as numbered
    uint64_t attempt = 0;  // the next one; any other that was planned is void
  };

  void on_up(const std::shared_ptr<Connection>& connection) override;
  void on_end(const std::shared_ptr<Connection>& connection, const std::string& reason) override;
  std::string loss_reason(int peer, const Connection& connection) const;
  Peer* owner_of(const std::shared_ptr<Connection>& connection);
  std::shared_ptr<Connection> open_connection(int id, const Peer& peer);
  void schedule_reconnect(int id, Peer& peer, Clock::duration wait);
  void reconnect(int id, uint64_t attempt);
  uint64_t lose(Peer& peer, const std::string& reason);
  void report_loss(int id, uint64_t loss);
  Clock::duration pause(int failures);

  const TcpConnection::Services services_;
  const UnixStream::Services unix_services_;
  mutable std::mutex mutex_;
  int self_ = -1;
  bool closed_ = false;
  uint64_t next_number_ = 1;
  std::unordered_map<int, Peer> peers_;
  std::minstd_rand random_{std::random_device{}()};
};

}  // namespace rpc_backends::zeromq
