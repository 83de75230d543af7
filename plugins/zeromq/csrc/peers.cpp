#include "peers.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "memory_shortage.h"

namespace rpc_backends::zeromq {

namespace {

using Milliseconds = std::chrono::milliseconds;

// Between two attempts to reconnect to a lost peer; it doubles each time.
constexpr Milliseconds kFirstPause{50};
constexpr Milliseconds kLongestPause{5000};
// A connection that lasted this long does not count as a failure.
constexpr Milliseconds kStable{5000};

std::string called(int peer) {
  return "worker " + std::to_string(peer);
}

}  // namespace

void Peers::start(int self) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (self < 0) {
    throw TransportError("a worker id must not be negative, and this is " + std::to_string(self));
  }
  if (self_ != -1 && self_ != self) {
    throw TransportError("the transport is already started as " + called(self_));
  }
  self_ = self;
}

bool Peers::started() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return self_ != -1;
}

void Peers::learn(int peer, const Endpoint& endpoint, const Credentials& credentials) {
  std::shared_ptr<Connection> old;
  uint64_t loss = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Peer& known = peers_[peer];
    const bool same = known.endpoint == endpoint && known.credentials == credentials;
    if (same && !known.lost) {
      return;
    }
    // What may run out of memory comes first, so that nothing has changed then.
    Endpoint new_endpoint = endpoint;
    Credentials new_credentials = credentials;
    if (!same) {
      loss = known.connection && !known.lost ? lose(known, "its address has changed") : 0;
      known.is_reporting = known.is_reporting || loss != 0;
      old = std::move(known.connection);
    }
    known.endpoint = std::move(new_endpoint);
    known.credentials = std::move(new_credentials);
  }
  if (old) {
    end_old(peer, *old, loss);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = peers_.find(peer);
  if (entry != peers_.end() && entry->second.lost && !entry->second.connection) {
    entry->second.failures = 0;
    schedule_reconnect(peer, entry->second, kFirstPause);
  }
}

// Closes the connection of a peer's former address, and reports the loss if there is one.
void Peers::end_old(int peer, Connection& old, uint64_t loss) {
  struct Reporting {
    Peers& peers;
    const int id;
    const uint64_t loss;
    ~Reporting() {
      std::lock_guard<std::mutex> lock(peers.mutex_);
      const auto entry = peers.peers_.find(id);
      if (entry != peers.peers_.end() && entry->second.loss == loss) {
        entry->second.is_reporting = false;
      }
    }
  };
  const Reporting reporting{*this, peer, loss};
  old.close(Clock::now());
  if (loss != 0) {
    insist([&] { report_loss(peer, loss); });
  }
}

void Peers::forget(int peer) {
  std::shared_ptr<Connection> connection;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = peers_.find(peer);
    if (entry == peers_.end()) {
      return;
    }
    connection = std::move(entry->second.connection);
    peers_.erase(entry);
  }
  if (connection) {
    connection->close(Clock::now());
  }
}

void Peers::send(int peer, Parts parts) {
  std::shared_ptr<Connection> connection;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = peers_.find(peer);
    if (self_ == -1 || entry == peers_.end()) {
      throw TransportError(self_ == -1 ? "the transport has not been started"
                                       : called(peer) + " is not known to this worker");
    }
    Peer& known = entry->second;
    if (known.lost) {
      throw TransportError(called(peer) + " is lost: " + known.reason);
    }
    if (!known.connection) {
      known.connection = open_connection(peer, known);
    }
    connection = known.connection;
  }
  if (!connection->send(std::move(parts))) {
    throw TransportError(called(peer) + " is lost: " + loss_reason(peer, *connection));
  }
}

std::string Peers::loss_reason(int peer, const Connection& connection) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = peers_.find(peer);
  const bool known = entry != peers_.end() && entry->second.lost;
  return known ? entry->second.reason : "the connection to " + connection.endpoint().text() + " has ended";
}

void Peers::end_connection(int peer, const std::string& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = peers_.find(peer);
  if (entry != peers_.end() && entry->second.connection) {
    entry->second.connection->end(reason);
  }
}

void Peers::end_revoked(const Revoked& revoked) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [id, peer] : peers_) {
    if (peer.connection && peer.connection->uses(revoked)) {
      peer.connection->end(kRevoked);
    }
  }
}

void Peers::hint(int peer) {
  std::shared_ptr<Connection> unanswered;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = peers_.find(peer);
    if (entry == peers_.end() || !entry->second.lost) {
      return;
    }
    // The system waits longer and longer before it tries again to connect, as during an outage that is over now.
    if (entry->second.connection && !entry->second.connection->is_connected()) {
      unanswered = std::move(entry->second.connection);
    }
    if (!entry->second.connection) {
      schedule_reconnect(peer, entry->second, kFirstPause);
    }
  }
  if (unanswered) {
    unanswered->close(Clock::now());
  }
}

void Peers::wait_until_sent(Clock::time_point deadline) {
  std::vector<std::shared_ptr<Connection>> connections;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [id, peer] : peers_) {
      if (peer.connection && !peer.lost) {
        connections.push_back(peer.connection);
      }
    }
  }
  for (const auto& connection : connections) {
    connection->wait_until_sent(deadline);
  }
}

void Peers::close(Clock::time_point deadline) {
  std::unordered_map<int, Peer> peers;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    peers.swap(peers_);
  }
  for (auto& [id, peer] : peers) {
    if (peer.connection) {
      // A connection that only attempts to reconnect has no queued messages.
      peer.connection->close(peer.lost ? Clock::now() : deadline);
    }
  }
}

// --- connections ------------------------------------------------------------------------------------------

std::shared_ptr<Connection> Peers::open_connection(int id, const Peer& peer) {
  Connection::Owner& owner = *this;
  auto connection = std::make_shared<Connection>(services_, owner, id, peer.endpoint);
  connection->open(peer.credentials, self_);
  return connection;
}

Peers::Peer* Peers::owner_of(const std::shared_ptr<Connection>& connection) {
  const auto entry = peers_.find(connection->peer());
  return entry != peers_.end() && entry->second.connection == connection ? &entry->second : nullptr;
}

void Peers::on_up(const std::shared_ptr<Connection>& connection) {
  std::lock_guard<std::mutex> lock(mutex_);
  Peer* const peer = owner_of(connection);
  if (peer == nullptr || !peer->lost) {
    return;
  }
  Event event;
  event.kind = Event::Kind::kFound;
  event.peer = connection->peer();
  services_.inbox.push(std::move(event));  // may throw
  peer->lost = false;
  ++services_.counters.peers_found;
}

void Peers::on_end(const std::shared_ptr<Connection>& connection, const std::string& reason) {
  uint64_t loss = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (Peer* const peer = owner_of(connection)) {
      if (!peer->lost) {
        insist([&] { loss = lose(*peer, reason); });
      }
      peer->connection = nullptr;
      const bool was_stable =
          connection->up_since() != Clock::time_point() && Clock::now() - connection->up_since() > kStable;
      peer->failures = was_stable ? 0 : peer->failures;
      schedule_reconnect(connection->peer(), *peer, pause(peer->failures++));
    }
  }
  // Messages that had arrived come before the loss, because the agent relies on the order of events.
  connection->close(Clock::now());
  if (loss != 0) {
    insist([&] { report_loss(connection->peer(), loss); });
  }
}

uint64_t Peers::lose(Peer& peer, const std::string& reason) {
  peer.reason = reason;  // may throw
  ++services_.counters.peers_lost;
  peer.lost = true;
  peer.loss = next_number_++;
  return peer.loss;
}

void Peers::report_loss(int id, uint64_t loss) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = peers_.find(id);
  // A forgotten peer is not awaited, and a peer that is learned again is a different one.
  if (entry != peers_.end() && entry->second.loss == loss) {
    Event event;
    event.kind = Event::Kind::kLost;
    event.peer = id;
    event.reason = entry->second.reason;
    services_.inbox.push(std::move(event));
  }
}

void Peers::schedule_reconnect(int id, Peer& peer, Clock::duration wait) {
  const uint64_t attempt = next_number_++;
  peer.attempt = attempt;
  insist([&] { services_.event_loop.at(Clock::now() + wait, [this, id, attempt] { reconnect(id, attempt); }); });
}

void Peers::reconnect(int id, uint64_t attempt) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = peers_.find(id);
  if (closed_ || entry == peers_.end() || entry->second.attempt != attempt || entry->second.connection ||
      entry->second.is_reporting) {
    return;
  }
  Peer& peer = entry->second;
  try {
    if (has_ended(peer.credentials.process)) {
      return;  // another program may have its port
    }
    peer.connection = open_connection(id, peer);
  } catch (const std::exception&) {  // no socket can be made now, or memory is short
    schedule_reconnect(id, peer, pause(peer.failures++));
  }
}

Clock::duration Peers::pause(int failures) {
  const auto longest = std::min(kLongestPause, kFirstPause * (1 << std::min(failures, 10)));
  // Random, so that the workers do not all reconnect to a returning worker at the same moment.
  std::uniform_real_distribution<double> share(0.0, 0.5);
  return longest + std::chrono::duration_cast<Milliseconds>(longest * share(random_));
}

}  // namespace rpc_backends::zeromq
