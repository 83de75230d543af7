#include "link.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "wire.h"

namespace rpc_backends::zeromq {

namespace {

// libzmq keeps what is queued for a connection that breaks until it has another. It is told to wait a day
// before it makes one; by then the socket is gone, and what was in it.
constexpr int kNeverReconnect = 24 * 3600 * 1000;

// How long one waits to find out why a connection ended.
constexpr std::chrono::milliseconds kTrial{20};

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", seconds);
  return text;
}

}  // namespace

Link::Link(const Services& services, Listener& listener, int peer, const Endpoint& endpoint)
    : SocketSource(services.inbox, services.counters),
      Connection(listener, peer, endpoint),
      settings_(services.settings),
      context_(services.context),
      keeper_(services.keeper),
      releaser_(services.releaser),
      assembler_(services.settings.max_message) {}

Link::~Link() {
  close(0);
}

std::shared_ptr<Link> Link::self() {
  return std::static_pointer_cast<Link>(shared_from_this());
}

void Link::set_options(Socket& socket, const std::string& key, const Route& route) const {
  socket.set(option::kReconnectIvl, kNeverReconnect);
  socket.set(option::kConnectTimeout, milliseconds(settings_.handshake_timeout));
  socket.set(option::kHandshakeIvl, milliseconds(settings_.handshake_timeout));
  socket.watch_for_silence(settings_);
  socket.set(option::kMaxMsgSize, wire::on_wire(settings_.largest_frame()));
  socket.set(option::kIpv6, endpoint_.is_ipv6() ? 1 : 0);
  socket.set(option::kRoutingId, route.text);
  // Sends an empty message first: by that the peer knows which of its connections this is.
  socket.set(option::kProbeRouter, 1);
  if (settings_.encrypts()) {
    socket.set(option::kCurvePublicKey, settings_.public_key);
    socket.set(option::kCurveSecretKey, settings_.secret_key);
    socket.set(option::kCurveServerKey, key);
  }
}

void Link::open(const std::string& key, const Route& route) {
  using namespace monitor_event;
  opened_ = Clock::now();
  const std::weak_ptr<Link> weak = self();
  Lock lock(mutex_);
  Socket socket(context_, socket_type::kDealer);
  set_options(socket, key, route);
  monitor_ = std::make_unique<Monitor>(
      context_, socket, "link-" + std::to_string(peer_) + "-" + std::to_string(route.time),
      kConnected | kConnectRetried | kDisconnected | kHandshakeFailed | kHandshakeSucceeded |
          kHandshakeFailedProtocol | kHandshakeFailedAuth);
  enter(std::move(socket));
  monitor_fd_ = monitor_->fd();
  watch_ = keeper_.watch(monitor_fd_, [weak] {
    if (const auto link = weak.lock()) {
      link->on_monitor();
    }
  });
  ++counters_.connections;
  // Each step has its own time, and libzmq tells of none that fails before there is a socket.
  const double longest = 2 * settings_.handshake_timeout + 1;
  keeper_.at(opened_ + std::chrono::milliseconds(milliseconds(longest)), [weak] {
    if (const auto link = weak.lock()) {
      link->on_deadline();
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

bool Link::send(Parts parts) {
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

SocketSource::Read Link::read_one() {
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
      end("the peer takes nothing more by this connection: " + outcome.text);
      break;
    case Assembler::Outcome::Kind::kMalformed:
      broken_ = true;
      ++counters_.rejected;
      end("the peer has sent what is no message: " + outcome.text);
      break;
  }
  return read;
}

void Link::end(const std::string& reason) {
  keeper_.post([weak = weak_from_this(), reason] {
    const auto link = std::static_pointer_cast<Link>(weak.lock());
    if (link && !link->ended_) {
      link->ended_ = true;
      link->listener_.on_end(link, reason);
    }
  });
}

void Link::close(double linger) {
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
    return;  // somebody else has closed it meanwhile
  }
  --counters_.connections;
  std::optional<Socket> socket = leave();
  if (linger > 0) {
    socket->linger(linger);
  }
  keeper_.unwatch(watch_, monitor_fd_);
}

// --- on the keeper's thread -------------------------------------------------------------------------

void Link::on_monitor() {
  using namespace monitor_event;
  Monitor::Occurrence occurrence;
  while (!ended_ && monitor_->next(occurrence)) {
    switch (occurrence.event) {
      case kConnected:
        connected_ = true;
        break;
      case kHandshakeSucceeded:
        up_since_ = Clock::now();
        listener_.on_up(self());
        break;
      case kHandshakeFailed:
      case kHandshakeFailedProtocol:
        trouble_ = failure_text(occurrence);
        break;
      case kHandshakeFailedAuth:
        trouble_ = "the peer does not know our key";
        break;
      default:  // kDisconnected, kConnectRetried
        ended_ = true;
        find_out_why();
        break;
    }
  }
}

void Link::on_deadline() {
  if (!ended_ && up_since_ == Clock::time_point()) {
    ended_ = true;
    listener_.on_end(self(), "no connection to " + endpoint_.text() + " within " +
                                 seconds_text(2 * settings_.handshake_timeout + 1));
  }
}

// libzmq does not say why a connection ended, so it is tried again.
void Link::find_out_why() {
  int error = 0;
  const std::shared_ptr<Fd> trial = needs_trial() ? endpoint_.try_it(error) : nullptr;
  if (trial) {
    try {
      trial_ = keeper_.watch(trial->get(), [link = self(), trial] { link->on_trial(trial, true); }, EPOLLOUT);
      keeper_.at(Clock::now() + kTrial, [link = self(), trial] { link->on_trial(trial, false); });
      return;
    } catch (const TransportError&) {
      error = EINPROGRESS;
    }
  }
  listener_.on_end(self(), why_it_ended(error));
}

void Link::on_trial(const std::shared_ptr<Fd>& trial, bool done) {
  if (trial_ == 0) {
    return;
  }
  keeper_.unwatch(std::exchange(trial_, 0), trial->get());
  int error = EINPROGRESS;
  if (done) {
    socklen_t length = sizeof error;
    getsockopt(trial->get(), SOL_SOCKET, SO_ERROR, &error, &length);
  }
  listener_.on_end(self(), why_it_ended(error));
}

bool Link::needs_trial() const {
  return connected_ ? up_since_ != Clock::time_point() : !is_late();
}

bool Link::is_late() const {
  return Clock::now() - opened_ >= std::chrono::milliseconds(milliseconds(settings_.handshake_timeout));
}

// `error`: what a trial has found out.
std::string Link::why_it_ended(int error) const {
  if (!connected_) {
    return why_it_did_not_connect(error);
  }
  if (up_since_ == Clock::time_point()) {
    return "handshake with " + endpoint_.text() + " failed: " +
        (is_late() ? "not done within " + seconds_text(settings_.handshake_timeout)
              : trouble_.empty() ? "the connection ended during it" : trouble_);
  }
  // Where somebody listens still, or nothing answers, it is the silence, unless there was none; who has ended does
  // not listen.
  const auto silence = Clock::now() - std::max(last_message_.load(), up_since_);
  if (error != 0 && error != EINPROGRESS) {
    return "connection to " + endpoint_.text() + " lost; nobody is there now: " + std::strerror(error);
  }
  // Nearly: the last message may have come while what was never acknowledged was on its way.
  if (silence >= std::chrono::milliseconds(milliseconds(0.9 * settings_.heartbeat_timeout))) {
    return "no heartbeat from " + endpoint_.text() + " for " + seconds_text(settings_.heartbeat_timeout);
  }
  return "connection reset by " + endpoint_.text();
}

std::string Link::why_it_did_not_connect(int error) const {
  if (is_late()) {
    return "no answer from " + endpoint_.text() + " within " + seconds_text(settings_.handshake_timeout);
  }
  const bool unknown = error == 0 || error == EINPROGRESS;
  return "cannot connect to " + endpoint_.text() + ": " + std::strerror(unknown ? ECONNREFUSED : error);
}

}  // namespace rpc_backends::zeromq
