#include "tcp_connection.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "wire.h"

namespace rpc_backends::zeromq {

namespace {

// libzmq keeps messages queued for a broken connection until it reconnects. This interval makes it wait a day; by
// then the socket and its queue are closed.
constexpr int kNeverReconnect = 24 * 3600 * 1000;

// How long to wait for the reason why a connection ended.
constexpr std::chrono::milliseconds kProbeTime{20};

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", seconds);
  return text;
}

}  // namespace

TcpConnection::TcpConnection(const Services& services, Listener& listener, int peer, const Endpoint& endpoint)
    : SocketSource(services.inbox, services.counters),
      Connection(listener, peer, endpoint),
      settings_(services.settings),
      context_(services.context),
      event_loop_(services.event_loop),
      releaser_(services.releaser),
      assembler_(services.settings.max_message) {}

TcpConnection::~TcpConnection() {
  close(0);
}

std::shared_ptr<TcpConnection> TcpConnection::self() {
  return std::static_pointer_cast<TcpConnection>(shared_from_this());
}

void TcpConnection::set_options(Socket& socket, const std::string& key, const Route& route) const {
  socket.set(option::kReconnectIvl, kNeverReconnect);
  socket.set(option::kConnectTimeout, milliseconds(settings_.handshake_timeout));
  socket.set(option::kHandshakeIvl, milliseconds(settings_.handshake_timeout));
  socket.watch_for_silence(settings_);
  socket.set(option::kMaxMsgSize, wire::on_wire(settings_.largest_frame()));
  socket.set(option::kIpv6, endpoint_.is_ipv6() ? 1 : 0);
  socket.set(option::kRoutingId, route.text);
  // Sends an empty message first, by which the peer identifies this connection.
  socket.set(option::kProbeRouter, 1);
  if (settings_.encrypts()) {
    socket.set(option::kCurvePublicKey, settings_.public_key);
    socket.set(option::kCurveSecretKey, settings_.secret_key);
    socket.set(option::kCurveServerKey, key);
  }
}

void TcpConnection::open(const std::string& key, const Route& route) {
  using namespace monitor_event;
  opened_ = Clock::now();
  const std::weak_ptr<TcpConnection> weak = self();
  Lock lock(mutex_);
  Socket socket(context_, socket_type::kDealer);
  set_options(socket, key, route);
  monitor_ = std::make_unique<Monitor>(context_, socket,
                                       "connection-" + std::to_string(peer_) + "-" + std::to_string(route.time),
                                       kConnected | kConnectRetried | kDisconnected | kHandshakeFailed |
                                           kHandshakeSucceeded | kHandshakeFailedProtocol | kHandshakeFailedAuth);
  enter(std::move(socket));
  monitor_fd_ = monitor_->fd();
  watch_ = event_loop_.watch(monitor_fd_, [weak] {
    if (const auto connection = weak.lock()) {
      connection->on_monitor();
    }
  });
  ++counters_.connections;
  // Each step has its own timeout, and libzmq reports no failure that happens before it has a socket.
  const double longest = 2 * settings_.handshake_timeout + 1;
  event_loop_.at(opened_ + std::chrono::milliseconds(milliseconds(longest)), [weak] {
    if (const auto connection = weak.lock()) {
      connection->on_deadline();
    }
  });
  if (!socket_->connect(endpoint_.text())) {
    const std::string why = text_of(errno);
    lock.unlock();
    close(0);
    throw TransportError("cannot connect to " + endpoint_.text() + ": " + why);
  }
  drain(std::move(lock));
}

bool TcpConnection::send(Parts parts) {
  releaser_.hold(parts);
  Packed message(std::move(parts), settings_.max_message, settings_.largest_frame());
  Lock lock(mutex_);
  if (!socket_) {
    return false;
  }
  const bool sent = message.send(*socket_, {});
  settle(std::move(lock));
  return sent;
}

SocketSource::Read TcpConnection::read_one() {
  Frame head;
  if (!socket_->receive(head)) {
    return {};
  }
  if (broken_) {
    ++counters_.dropped;
    Read dropped;
    dropped.kind = Read::Kind::kDone;
    while (head.more() && socket_->receive(head)) {
    }
    return dropped;
  }
  last_message_ = Clock::now();
  Assembler::Outcome outcome = assembler_.take(std::move(head), *socket_);
  Read read;
  read.kind = Read::Kind::kDone;
  switch (outcome.kind) {
    case Assembler::Outcome::Kind::kNothing:
      break;
    case Assembler::Outcome::Kind::kMessage:
      push(peer_, std::move(outcome.parts));
      break;
    case Assembler::Outcome::Kind::kPiece:
      read.kind = Read::Kind::kPiece;
      read.peer = peer_;
      read.piece = std::move(outcome.piece);
      break;
    case Assembler::Outcome::Kind::kRefusal:
      broken_ = true;
      end("the peer rejected this connection: " + outcome.text);
      break;
    case Assembler::Outcome::Kind::kMalformed:
      broken_ = true;
      ++counters_.rejected;
      end("the peer sent an invalid message: " + outcome.text);
      break;
  }
  return read;
}

void TcpConnection::end(const std::string& reason) {
  event_loop_.post([weak = weak_from_this(), reason] {
    const auto connection = std::static_pointer_cast<TcpConnection>(weak.lock());
    if (connection && !connection->ended_) {
      connection->ended_ = true;
      connection->listener_.on_end(connection, reason);
    }
  });
}

void TcpConnection::close(double linger) {
  Lock lock(mutex_);
  if (!socket_) {
    return;
  }
  for (Read read; (read = read_one()).kind != Read::Kind::kEmpty;) {
    if (read.piece) {
      if (std::optional<Parts> parts = read.piece->put()) {
        push(peer_, std::move(*parts));
      }
    }
  }
  finish_pieces(lock);
  if (!socket_) {
    return;  // another thread has closed it meanwhile
  }
  --counters_.connections;
  std::optional<Socket> socket = leave();
  if (linger > 0) {
    socket->linger(linger);
  }
  event_loop_.unwatch(watch_, monitor_fd_);
}

// --- on the event loop's thread ---------------------------------------------------------------------

void TcpConnection::on_monitor() {
  using namespace monitor_event;
  Monitor::SocketEvent socket_event;
  while (!ended_ && monitor_->next(socket_event)) {
    switch (socket_event.event) {
      case kConnected:
        connected_ = true;
        break;
      case kHandshakeSucceeded:
        up_since_ = Clock::now();
        listener_.on_up(self());
        break;
      case kHandshakeFailed:
      case kHandshakeFailedProtocol:
        trouble_ = failure_text(socket_event);
        break;
      case kHandshakeFailedAuth:
        trouble_ = "the peer does not know this worker's key";
        break;
      default:  // kDisconnected, kConnectRetried
        ended_ = true;
        find_out_why();
        break;
    }
  }
}

void TcpConnection::on_deadline() {
  if (!ended_ && up_since_ == Clock::time_point()) {
    ended_ = true;
    listener_.on_end(self(), "no connection to " + endpoint_.text() + " within " +
                                 seconds_text(2 * settings_.handshake_timeout + 1));
  }
}

// libzmq does not say why a connection ended, so this probes the endpoint.
void TcpConnection::find_out_why() {
  int error = 0;
  const std::shared_ptr<Fd> probe = needs_probe() ? endpoint_.probe(error) : nullptr;
  if (probe) {
    try {
      probe_ = event_loop_.watch(
          probe->get(), [connection = self(), probe] { connection->on_probe(probe, true); }, EPOLLOUT);
      event_loop_.at(Clock::now() + kProbeTime, [connection = self(), probe] { connection->on_probe(probe, false); });
      return;
    } catch (const TransportError&) {
      error = EINPROGRESS;
    }
  }
  listener_.on_end(self(), why_it_ended(error));
}

void TcpConnection::on_probe(const std::shared_ptr<Fd>& probe, bool done) {
  if (probe_ == 0) {
    return;
  }
  event_loop_.unwatch(std::exchange(probe_, 0), probe->get());
  int error = EINPROGRESS;
  if (done) {
    socklen_t length = sizeof error;
    getsockopt(probe->get(), SOL_SOCKET, SO_ERROR, &error, &length);
  }
  listener_.on_end(self(), why_it_ended(error));
}

bool TcpConnection::needs_probe() const {
  return connected_ ? up_since_ != Clock::time_point() : !is_late();
}

bool TcpConnection::is_late() const {
  return Clock::now() - opened_ >= std::chrono::milliseconds(milliseconds(settings_.handshake_timeout));
}

// `error`: the result of the probe.
std::string TcpConnection::why_it_ended(int error) const {
  if (!connected_) {
    return why_it_did_not_connect(error);
  }
  if (up_since_ == Clock::time_point()) {
    return "handshake with " + endpoint_.text() + " failed: " +
           (is_late()          ? "not finished within " + seconds_text(settings_.handshake_timeout)
            : trouble_.empty() ? "the connection ended during the handshake"
                               : trouble_);
  }
  // If the endpoint still accepts connections or does not answer, the cause is missing heartbeats, unless there was
  // recent data. A process that has ended does not accept connections.
  const auto silence = Clock::now() - std::max(last_message_.load(), up_since_);
  if (error != 0 && error != EINPROGRESS) {
    return "connection to " + endpoint_.text() + " lost; the peer no longer listens: " + std::strerror(error);
  }
  // Nearly as long is enough: the last message may have arrived while unacknowledged data was on its way.
  if (silence >= std::chrono::milliseconds(milliseconds(0.9 * settings_.heartbeat_timeout))) {
    return "no heartbeat from " + endpoint_.text() + " for " + seconds_text(settings_.heartbeat_timeout);
  }
  return "connection reset by " + endpoint_.text();
}

std::string TcpConnection::why_it_did_not_connect(int error) const {
  if (is_late()) {
    return "no answer from " + endpoint_.text() + " within " + seconds_text(settings_.handshake_timeout);
  }
  const bool is_refused = error == 0 || error == EINPROGRESS || error == ECONNREFUSED;
  return "cannot connect to " + endpoint_.text() + ": " + std::strerror(is_refused ? ECONNREFUSED : error) +
         (is_refused ? "; no process listens there. The worker has ended, or has left without shutdown(): look at its "
                       "output"
                     : "");
}

}  // namespace rpc_backends::zeromq
