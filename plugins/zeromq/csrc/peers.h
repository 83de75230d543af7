// The peers that this worker calls: where each listens and the connection to it. The first message opens the
// connection. When the connection ends, the peer is lost, and reconnects are attempted in the background until one
// succeeds, or until the peer's process on this host has ended: it returns with another address only.
#pragma once

#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "connection.h"

namespace rpc_backends::zeromq {

class Peers : private Connection::Owner {
 public:
  explicit Peers(const Stream::Services& services) : services_(services) {}

  // Sets the id under which peers know this worker.
  void start(int self);
  bool started() const;

  // Adds a peer. If the peer is known with another address or other credentials, it is lost first, and found again
  // once it is reachable.
  void learn(int peer, const Endpoint& endpoint, const Credentials& credentials);
  void forget(int peer);

  // Throws TransportError.
  void send(int peer, Parts parts);

  // Ends the connection to a peer because of invalid data that it sent.
  void end_connection(int peer, const std::string& reason);

  // Ends the connections to peers whose certificates are revoked. Call it on the event loop's thread.
  void end_revoked(const Revoked& revoked);

  // A peer may be reachable: if it is lost, a reconnect is attempted soon. Call it on the event loop's thread.
  void hint(int peer);

  // Waits, at most until `deadline`, until no message is queued, also behind a handshake.
  void wait_until_sent(Clock::time_point deadline);

  // Closes all connections. Queued messages are sent until `deadline`.
  void close(Clock::time_point deadline);

 private:
  struct Peer {
    Endpoint endpoint;
    Credentials credentials;
    std::shared_ptr<Connection> connection;
    bool lost = false;
    std::string reason;
    int failures = 0;   // in a row
    uint64_t loss = 0;  // the number of the last loss
    // learn() is about to report the loss. A reconnect, for which there may be a hint, would find the peer before that.
    bool is_reporting = false;
    uint64_t attempt = 0;  // the number of the next attempt; earlier attempts are cancelled
  };

  void on_up(const std::shared_ptr<Connection>& connection) override;
  void on_end(const std::shared_ptr<Connection>& connection, const std::string& reason) override;
  std::string loss_reason(int peer, const Connection& connection) const;
  Peer* owner_of(const std::shared_ptr<Connection>& connection);
  std::shared_ptr<Connection> open_connection(int id, const Peer& peer);
  void schedule_reconnect(int id, Peer& peer, Clock::duration wait);
  void reconnect(int id, uint64_t attempt);
  void end_old(int peer, Connection& old, uint64_t loss);
  uint64_t lose(Peer& peer, const std::string& reason);
  void report_loss(int id, uint64_t loss);
  Clock::duration pause(int failures);

  const Stream::Services services_;
  mutable std::mutex mutex_;
  int self_ = -1;
  bool closed_ = false;
  uint64_t next_number_ = 1;
  std::unordered_map<int, Peer> peers_;
  std::minstd_rand random_{std::random_device{}()};
};

}  // namespace rpc_backends::zeromq
