#include "peers.h"

#include <algorithm>
#include <utility>

namespace rpc_backends::zeromq {

namespace {

using Milliseconds = std::chrono::milliseconds;

// Between two trials to reach a lost peer: twice as long each time.
constexpr Milliseconds kFirstPause{50};
constexpr Milliseconds kLongestPause{5000};
// A link that stood for this long was no failure.
constexpr Milliseconds kStood{5000};

std::string called(int peer) {
  return "worker " + std::to_string(peer);
}

}  // namespace

void Peers::start(int self) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (self < 0) {
    throw TransportError("a worker's id cannot be " + std::to_string(self));
  }
  if (self_ != -1 && self_ != self) {
    throw TransportError("the transport has been started as " + called(self_));
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
    known.endpoint = endpoint;
    known.credentials = credentials;
    if (!same) {
      old = std::move(known.link);
      loss = old && !known.lost ? lose(known, "its address has changed") : 0;
    }
  }
  if (old) {
    old->close(0);
  }
  if (loss != 0) {
    tell_loss(peer, loss);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = peers_.find(peer);
  if (found != peers_.end() && found->second.lost && !found->second.link) {
    found->second.failures = 0;
    plan_trial(peer, found->second, kFirstPause);
  }
}

void Peers::forget(int peer) {
  std::shared_ptr<Connection> link;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = peers_.find(peer);
    if (found == peers_.end()) {
      return;
    }
    link = std::move(found->second.link);
    peers_.erase(found);
  }
  if (link) {
    link->close(0);
  }
}

void Peers::send(int peer, Parts parts) {
  std::shared_ptr<Connection> link;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = peers_.find(peer);
    if (self_ == -1 || found == peers_.end()) {
      throw TransportError(self_ == -1 ? "the transport has not been started"
                                       : called(peer) + " is not known to this worker");
    }
    Peer& known = found->second;
    if (known.lost) {
      throw TransportError(called(peer) + " is lost: " + known.reason);
    }
    if (!known.link) {
      known.link = open_link(peer, known);
    }
    link = known.link;
  }
  if (!link->send(std::move(parts))) {
    throw TransportError(called(peer) + " is lost: " + why_lost(peer, *link));
  }
}

std::string Peers::why_lost(int peer, const Connection& link) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = peers_.find(peer);
  const bool known = found != peers_.end() && found->second.lost;
  return known ? found->second.reason : "the connection to " + link.endpoint().text() + " has ended";
}

void Peers::end_link(int peer, const std::string& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = peers_.find(peer);
  if (found != peers_.end() && found->second.link) {
    found->second.link->end(reason);
  }
}

void Peers::hint(int peer) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = peers_.find(peer);
  if (found != peers_.end() && found->second.lost && !found->second.link) {
    plan_trial(peer, found->second, kFirstPause);
  }
}

void Peers::close(double linger) {
  std::unordered_map<int, Peer> peers;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    peers.swap(peers_);
  }
  // libzmq's leave at the same time, later; the others one after the other, in what is left of the time.
  const auto deadline = Clock::now() + Milliseconds(milliseconds(linger));
  for (const bool is_unix : {false, true}) {
    for (auto& [id, peer] : peers) {
      if (peer.link && peer.endpoint.is_unix() == is_unix) {
        const std::chrono::duration<double> left = deadline - Clock::now();
        // Nothing can be on a link that is a trial.
        peer.link->close(peer.lost ? 0 : is_unix ? std::max(0.0, left.count()) : linger);
      }
    }
  }
}

// --- links ------------------------------------------------------------------------------------------

std::shared_ptr<Connection> Peers::open_link(int id, const Peer& peer) {
  Connection::Listener& listener = *this;
  if (peer.endpoint.is_unix()) {
    auto link = std::make_shared<UnixLink>(unix_services_, listener, id, peer.endpoint);
    link->open(peer.credentials, Route::make(self_));
    return link;
  }
  auto link = std::make_shared<Link>(services_, listener, id, peer.endpoint);
  link->open(peer.credentials.public_key, Route::make(self_));
  return link;
}

Peers::Peer* Peers::owner_of(const std::shared_ptr<Connection>& link) {
  const auto found = peers_.find(link->peer());
  return found != peers_.end() && found->second.link == link ? &found->second : nullptr;
}

void Peers::on_up(const std::shared_ptr<Connection>& link) {
  std::lock_guard<std::mutex> lock(mutex_);
  Peer* const peer = owner_of(link);
  if (peer == nullptr || !peer->lost) {
    return;
  }
  peer->lost = false;
  ++services_.counters.found;
  Event event;
  event.kind = Event::Kind::kFound;
  event.peer = link->peer();
  services_.inbox.push(std::move(event));
}

void Peers::on_end(const std::shared_ptr<Connection>& link, const std::string& reason) {
  uint64_t loss = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (Peer* const peer = owner_of(link)) {
      peer->link = nullptr;
      loss = peer->lost ? 0 : lose(*peer, reason);
      const bool stood = link->up_since() != Clock::time_point() && Clock::now() - link->up_since() > kStood;
      peer->failures = stood ? 0 : peer->failures;
      plan_trial(link->peer(), *peer, pause(peer->failures++));
    }
  }
  // What had arrived goes before the loss: events have an order, and the agent keeps to it.
  link->close(0);
  if (loss != 0) {
    tell_loss(link->peer(), loss);
  }
}

uint64_t Peers::lose(Peer& peer, const std::string& reason) {
  ++services_.counters.lost;
  peer.lost = true;
  peer.reason = reason;
  peer.loss = next_number_++;
  return peer.loss;
}

void Peers::tell_loss(int id, uint64_t loss) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = peers_.find(id);
  // Nobody waits for a peer that has been forgotten, and one that is learned again is another.
  if (found != peers_.end() && found->second.loss == loss) {
    Event event;
    event.kind = Event::Kind::kLost;
    event.peer = id;
    event.reason = found->second.reason;
    services_.inbox.push(std::move(event));
  }
}

void Peers::plan_trial(int id, Peer& peer, Clock::duration wait) {
  const uint64_t trial = next_number_++;
  peer.trial = trial;
  services_.keeper.at(Clock::now() + wait, [this, id, trial] { try_again(id, trial); });
}

void Peers::try_again(int id, uint64_t trial) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = peers_.find(id);
  if (closed_ || found == peers_.end() || found->second.trial != trial || found->second.link) {
    return;
  }
  Peer& peer = found->second;
  try {
    peer.link = open_link(id, peer);
  } catch (const TransportError&) {  // no room for a socket now
    plan_trial(id, peer, pause(peer.failures++));
  }
}

Clock::duration Peers::pause(int failures) {
  const auto longest = std::min(kLongestPause, kFirstPause * (1 << std::min(failures, 10)));
  // Not all workers try a worker that comes back in the same moment.
  std::uniform_real_distribution<double> share(0.0, 0.5);
  return longest + std::chrono::duration_cast<Milliseconds>(longest * share(random_));
}

}  // namespace rpc_backends::zeromq
