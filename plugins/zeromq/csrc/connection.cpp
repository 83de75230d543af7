#include "connection.h"

#include <openssl/crypto.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <new>

#include "memory_shortage.h"
#include "wire.h"

namespace rpc_backends::zeromq {

namespace {

// Between two attempts to connect while the backlog of a peer's Unix socket is full.
constexpr double kPause = 0.01;
// How long to wait for the reason why a connection ended.
constexpr std::chrono::milliseconds kProbeTime{20};

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", seconds);
  return text;
}

Clock::duration duration_of(double seconds) {
  return std::chrono::milliseconds(milliseconds(seconds));
}

uint64_t next_time() {
  static std::atomic<uint64_t> last{0};
  const auto now =
      static_cast<uint64_t>(std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count());
  uint64_t before = last;
  uint64_t next = 0;
  do {
    next = now > before ? now : before + 1;
  } while (!last.compare_exchange_weak(before, next));
  return next;
}

// Says what connecting to a Unix socket has returned. A process that closes its socket removes the file, too.
std::string why_refused(int error) {
  return std::string(std::strerror(error)) + (error == ECONNREFUSED ? "; its process has ended"
                                              : error == ENOENT     ? "; the worker has stopped RPC"
                                                                    : "");
}

}  // namespace

Connection::~Connection() {
  try {
    close(Clock::now());
  } catch (const std::bad_alloc&) {  // the sockets are closed anyway
  }
}

std::unique_ptr<Channel> Connection::make_channel(const Credentials& credentials) {
  std::unique_ptr<Fd> socket = endpoint_.open_socket(services_.settings.heartbeat_timeout);
  if (!services_.settings.encrypts(endpoint_.is_unix())) {
    return std::make_unique<Channel>(std::move(socket));
  }
  std::unique_ptr<TlsChannel> channel = services_.tls->connecting(std::move(socket), credentials.public_key);
  tls_ = channel.get();
  return channel;
}

void Connection::open(const Credentials& credentials, int self) {
  opened_ = Clock::now();
  std::copy_n(kForm, sizeof kForm, greeting_.form);
  greeting_.worker = self;
  greeting_.lane = lane_.number;
  credentials_ = credentials;
  const std::weak_ptr<Connection> weak = weak_from_this();
  if (const auto first = lane_.first.lock()) {
    greeting_.time = first->greeting_.time;
    link_ = first->link_;
  } else {
    greeting_.time = next_time();
    link_ = std::make_shared<Link>(services_.settings.max_message, [weak] {
      if (const auto connection = weak.lock()) {
        connection->on_large();
      }
    });
  }
  if (endpoint_.is_unix() || services_.settings.certificates) {
    set_proof(greeting_.proof, credentials.our_greeting);
    expected_ = credentials.their_answer;
  }
  std::unique_ptr<Channel> channel = make_channel(credentials);
  channel_ = channel.get();
  const auto on_end = [weak](const std::string& reason) {
    if (const auto connection = weak.lock()) {
      insist([&] {
        connection->services_.event_loop.post([weak, reason] {
          if (const auto ended = weak.lock()) {
            ended->on_stream_end(reason);
          }
        });
      });
    }
  };
  stream_ = std::make_shared<Stream>(services_, peer_, std::move(channel), on_end, link_, lane_.number != 0);
  ++services_.counters.connections;
  services_.event_loop.post([weak] {
    if (const auto connection = weak.lock()) {
      connection->run(&Connection::connect);
    }
  });
}

bool Connection::send(Parts parts) {
  return stream_->send(std::move(parts));
}

void Connection::close(Clock::time_point deadline) {
  if (!stream_ || closed_.exchange(true)) {
    return;
  }
  --services_.counters.connections;
  unwatch();
  std::vector<std::shared_ptr<Connection>> others;
  insist([&] { others = lanes(); });
  if (!others.empty()) {
    for (const auto& lane : others) {
      insist([&] { lane->stream_->drain(deadline); });
    }
    insist([&] { stream_->drain(deadline); });
  }
  insist([&] { stream_->close(deadline); });
  for (const auto& lane : others) {
    lane->close(deadline);
  }
}

std::vector<std::shared_ptr<Connection>> Connection::lanes() {
  const std::lock_guard<std::mutex> lock(lanes_mutex_);
  return lanes_;
}

void Connection::wait_until_sent(Clock::time_point deadline) {
  link_->wait_until_taken(deadline);
  for (const auto& lane : lanes()) {
    lane->stream_->wait_until_sent(deadline);
  }
  stream_->wait_until_sent(deadline);
}

bool Connection::uses(const Revoked& revoked) {
  const std::vector<std::shared_ptr<Connection>> others = lanes();
  return (tls_ != nullptr && revoked.covers(tls_->peer())) ||
         std::any_of(others.begin(), others.end(), [&](const auto& lane) { return lane->uses(revoked); });
}

void Connection::end(const std::string& reason) {
  services_.event_loop.post([weak = weak_from_this(), reason] {
    if (const auto connection = weak.lock()) {
      connection->report_end(reason);
    }
  });
}

// --- on the event loop's thread ---------------------------------------------------------------------

// Runs a task. If memory or descriptors are short, the connection ends: its owner makes another one.
void Connection::run(void (Connection::*task)()) {
  if (ended_ || closed_) {
    return;
  }
  try {
    (this->*task)();
  } catch (const std::exception& error) {
    std::string reason;
    insist([&] { reason = "the connection to " + endpoint_.text() + " has failed: " + error.what(); });
    report_end(reason);
  }
}

void Connection::later(double seconds, void (Connection::*task)()) {
  services_.event_loop.at(Clock::now() + duration_of(seconds), [weak = weak_from_this(), task] {
    if (const auto connection = weak.lock()) {
      connection->run(task);
    }
  });
}

// Runs `task` whenever the socket is ready, instead of an earlier one.
void Connection::watch(uint32_t events, void (Connection::*task)()) {
  unwatch();
  watch_ = services_.event_loop.watch(
      stream_->fd(),
      [weak = weak_from_this(), task] {
        if (const auto connection = weak.lock()) {
          connection->run(task);
        }
      },
      events);
}

void Connection::unwatch() {
  if (const uint64_t watch = watch_.exchange(0); watch != 0) {
    services_.event_loop.unwatch(watch, stream_->fd());
  }
}

void Connection::connect() {
  if (::connect(stream_->fd(), endpoint_.address(), endpoint_.address_size()) == 0) {
    on_connected();
  } else if (errno == EINPROGRESS) {
    later(services_.settings.handshake_timeout, &Connection::on_late_connect);
    watch(EPOLLOUT, &Connection::on_connecting);
  } else if (errno == EAGAIN && endpoint_.is_unix() &&
             Clock::now() - opened_ < duration_of(services_.settings.handshake_timeout)) {
    later(kPause, &Connection::connect);
  } else {
    report_end(why_it_did_not_connect(errno));
  }
}

void Connection::on_connecting() {
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(stream_->fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) {
    report_end(why_it_did_not_connect(error));
    return;
  }
  unwatch();
  on_connected();
}

void Connection::on_connected() {
  connected_ = true;
  later(services_.settings.handshake_timeout, &Connection::on_late_handshake);
  if (endpoint_.is_unix()) {
    if (const std::string stranger = other_user(stream_->fd()); !stranger.empty()) {
      report_end("cannot connect to " + endpoint_.text() + ": the listening process is " + stranger);
      return;
    }
  }
  if (has_ended(credentials_.process)) {
    report_end("its process has ended");  // another program has its port, and data that is not its own may harm that
    return;
  }
  if (tls_ != nullptr) {
    shake_hands();
  } else {
    greet();
  }
}

void Connection::shake_hands() {
  switch (tls_->shake_hands()) {
    case TlsChannel::Handshake::kDone:
      greet();
      break;
    case TlsChannel::Handshake::kNeedsData:
      watch(EPOLLIN, &Connection::shake_hands);
      break;
    case TlsChannel::Handshake::kNeedsRoom:
      watch(EPOLLOUT, &Connection::shake_hands);
      break;
    case TlsChannel::Handshake::kFailed:
      report_failure(tls_->failure());
      break;
  }
}

void Connection::greet() {
  const iovec place{&greeting_, sizeof greeting_};
  // It fits into the buffer of the socket.
  if (channel_->write(&place, 1) != static_cast<ssize_t>(sizeof greeting_) || !channel_->flush()) {
    report_failure(std::strerror(errno));
    return;
  }
  watch(EPOLLIN, &Connection::on_answer);
  on_answer();
}

void Connection::on_answer() {
  Answer answer{};
  size_t wanted = sizeof answer;
  for (;;) {
    if (answer_.size() >= sizeof answer) {
      std::memcpy(&answer, answer_.data(), sizeof answer);
      if (answer.text_size > wire::kLongestReason || (answer.is_admitted != 0 && answer.text_size != 0)) {
        report_failure("the listening process is not a worker of this version");
        return;
      }
      wanted = sizeof answer + answer.text_size;
    }
    if (answer_.size() == wanted) {
      break;
    }
    char buffer[sizeof answer + wire::kLongestReason];
    const ssize_t got = channel_->read(buffer, wanted - answer_.size());
    if (got == -1 && errno == EAGAIN) {
      return;
    }
    if (got <= 0) {
      // TLS ends the handshake at this side before the other side has seen the certificate.
      report_failure(services_.settings.certificates ? kEndedOrRefused : kEnded);
      return;
    }
    answer_.append(buffer, static_cast<size_t>(got));
    if (answer_.compare(0, sizeof kForm, kForm, std::min(answer_.size(), sizeof kForm)) != 0) {
      report_failure(begins_as_tls(answer_) ? kOneEncrypts : "the listening process is not a worker of this version");
      return;
    }
  }
  if (answer.is_admitted == 0) {
    report_failure(answer_.substr(sizeof answer));
  } else if (!expected_.empty() && CRYPTO_memcmp(answer.proof, expected_.data(), kProofSize) != 0) {
    report_failure("the listening process cannot prove that it is the peer");
  } else {
    on_up();
  }
}

void Connection::on_up() {
  unwatch();
  up_since_ = Clock::now();
  if (lane_.number == 0) {
    round_trip_ = round_trip(stream_->fd());
    owner_.on_up(shared_from_this());
  }
  stream_->start();
  link_->add(stream_, lane_.number != 0);
  later(services_.settings.heartbeat / 2, &Connection::on_tick);
  if (const auto first = lane_.first.lock()) {
    first->open_next_lane();
  } else if (wants_lanes_) {
    open_next_lane();
  }
}

void Connection::on_late_connect() {
  if (!connected_) {
    report_end("no answer from " + endpoint_.text() + " within " + seconds_text(services_.settings.handshake_timeout));
  }
}

void Connection::on_late_handshake() {
  if (up_since_ == Clock::time_point()) {
    report_failure("not finished within " + seconds_text(services_.settings.handshake_timeout));
  }
}

void Connection::on_tick() {
  if (stream_->check_liveness() >= duration_of(services_.settings.heartbeat_timeout)) {
    report_silence();
    return;
  }
  later(services_.settings.heartbeat / 2, &Connection::on_tick);
}

// --- lanes ------------------------------------------------------------------------------------------

void Connection::on_large() {
  services_.event_loop.post([weak = weak_from_this()] {
    if (const auto connection = weak.lock()) {
      connection->wants_lanes_ = true;
      if (connection->up_since_ != Clock::time_point()) {
        connection->open_next_lane();
      }
    }
  });
}

void Connection::open_next_lane() {
  const Settings& settings = services_.settings;
  const bool may_be_several = !endpoint_.is_unix() && round_trip_ >= settings.long_link;
  const uint32_t most = may_be_several ? settings.bulk_connections : std::min(settings.bulk_connections, 1U);
  const std::lock_guard<std::mutex> lock(lanes_mutex_);
  if (ended_ || closed_ || lanes_.size() >= most) {
    return;
  }
  const auto number = static_cast<uint32_t>(lanes_.size() + 1);
  auto lane = std::make_shared<Connection>(services_, owner_, peer_, endpoint_, Lane{number, weak_from_this()});
  try {
    lane->open(credentials_, greeting_.worker);
  } catch (const TransportError&) {  // no socket can be made
    return;
  }
  lanes_.push_back(std::move(lane));
}

void Connection::on_lane_end(const std::shared_ptr<Connection>& lane, const std::string& reason) {
  if (lane->up_since_ != Clock::time_point()) {
    report_end(reason);
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(lanes_mutex_);
    lanes_.erase(std::remove(lanes_.begin(), lanes_.end(), lane), lanes_.end());
  }
  lane->close(Clock::now());
}

// --- the end ----------------------------------------------------------------------------------------

void Connection::report_silence() {
  report_end("no heartbeat from " + endpoint_.text() + " for " + seconds_text(services_.settings.heartbeat_timeout));
}

void Connection::report_failure(const std::string& why) {
  report_end("handshake with " + endpoint_.text() + " failed: " + why);
}

void Connection::report_end(const std::string& reason) {
  if (!ended_) {
    ended_ = true;
    unwatch();
    stream_->abandon();
    pass_end(reason);
  }
}

void Connection::pass_end(const std::string& reason) {
  if (lane_.number == 0) {
    owner_.on_end(shared_from_this(), reason);
  } else if (const auto first = lane_.first.lock()) {
    first->on_lane_end(shared_from_this(), reason);
  }
}

void Connection::on_stream_end(const std::string& reason) {
  if (reason == kNoHeartbeat) {
    report_silence();
    return;
  }
  if (ended_ || !reason.empty()) {
    report_end(reason);
    return;
  }
  ended_ = true;
  stream_->abandon();
  find_out_why();
}

// The end of a connection has no reason, so this probes the endpoint.
void Connection::find_out_why() {
  int error = 0;
  try {
    if (const std::shared_ptr<Fd> probe = endpoint_.probe(error)) {
      probe_ = services_.event_loop.watch(
          probe->get(), [connection = shared_from_this(), probe] { connection->on_probe(probe, true); }, EPOLLOUT);
      services_.event_loop.at(Clock::now() + kProbeTime,
                              [connection = shared_from_this(), probe] { connection->on_probe(probe, false); });
      return;
    }
  } catch (const std::exception&) {  // no watch can be made, or memory is short
    error = EINPROGRESS;
  }
  pass_end_after_probe(error);
}

void Connection::on_probe(const std::shared_ptr<Fd>& probe, bool done) {
  if (probe_ == 0) {
    return;
  }
  services_.event_loop.unwatch(std::exchange(probe_, 0), probe->get());
  int error = EINPROGRESS;
  if (done) {
    socklen_t length = sizeof error;
    ::getsockopt(probe->get(), SOL_SOCKET, SO_ERROR, &error, &length);
  }
  pass_end_after_probe(error);
}

void Connection::pass_end_after_probe(int error) {
  std::string reason;
  insist([&] { reason = why_it_ended(error); });
  pass_end(reason);
}

std::string Connection::why_it_did_not_connect(int error) const {
  const bool is_refused = error == ECONNREFUSED && !endpoint_.is_unix();
  return "cannot connect to " + endpoint_.text() + ": " +
         (endpoint_.is_unix() ? why_refused(error) : std::string(std::strerror(error))) +
         (is_refused ? "; no process listens there. The worker has ended, or has left without shutdown(): look at its "
                       "output"
                     : "");
}

// `error`: the result of the probe.
std::string Connection::why_it_ended(int error) const {
  const bool is_reset = error == 0 || error == EINPROGRESS || (error == EAGAIN && endpoint_.is_unix());
  return is_reset ? "connection reset by " + endpoint_.text()
                  : "connection to " + endpoint_.text() + " lost; the peer no longer listens: " +
                        (endpoint_.is_unix() ? why_refused(error) : std::string(std::strerror(error)));
}

}  // namespace rpc_backends::zeromq
