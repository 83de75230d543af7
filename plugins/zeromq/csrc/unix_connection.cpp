#include "unix_connection.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace rpc_backends::zeromq {

namespace {

// Between two attempts to connect while the peer's backlog is full.
constexpr double kPause = 0.01;

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", seconds);
  return text;
}

// Says what connect() has returned. A process that closes its socket removes the file, too.
std::string why_refused(int error) {
  return std::string(std::strerror(error)) + (error == ECONNREFUSED ? "; its process has ended"
                                              : error == ENOENT     ? "; the worker has stopped RPC"
                                                                    : "");
}

}  // namespace

std::unique_ptr<Fd> open_unix_socket() {
  return std::make_unique<Fd>(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

std::string other_user(int fd) {
  ucred found{};
  socklen_t size = sizeof found;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &found, &size) != 0) {
    return std::strerror(errno);
  }
  return found.uid == ::geteuid() ? ""
                                  : "process " + std::to_string(found.pid) + " of user " + std::to_string(found.uid) +
                                        ", but this is user " + std::to_string(::geteuid());
}

UnixConnection::~UnixConnection() {
  close(0);
}

void UnixConnection::open(const Credentials& credentials, const Route& route) {
  opened_ = Clock::now();
  std::copy_n(kUnixForm, sizeof kUnixForm, greeting_.form);
  greeting_.worker = route.worker;
  greeting_.time = route.time;
  std::copy_n(credentials.our_greeting.data(), std::min(credentials.our_greeting.size(), kProofSize), greeting_.proof);
  expected_ = credentials.their_answer;
  const std::weak_ptr<UnixConnection> weak = weak_from_this();
  stream_ = std::make_shared<UnixStream>(services_, peer_, open_unix_socket(), [weak](const std::string& reason) {
    if (const auto connection = weak.lock()) {
      connection->services_.event_loop.post([weak, reason] {
        if (const auto ended = weak.lock()) {
          ended->report_end(ended->why_it_ended(reason));
        }
      });
    }
  });
  ++services_.counters.connections;
  services_.event_loop.post([weak] {
    if (const auto connection = weak.lock()) {
      connection->connect();
    }
  });
}

bool UnixConnection::send(Parts parts) {
  return stream_->send(std::move(parts));
}

void UnixConnection::close(double linger) {
  if (!stream_ || closed_.exchange(true)) {
    return;
  }
  --services_.counters.connections;
  unwatch();
  stream_->close(Clock::now() + std::chrono::milliseconds(milliseconds(linger)));
}

void UnixConnection::wait_until_open(Clock::time_point deadline) {
  stream_->wait_until_started(deadline);
}

void UnixConnection::end(const std::string& reason) {
  services_.event_loop.post([weak = weak_from_this(), reason] {
    if (const auto connection = weak.lock()) {
      connection->report_end(reason);
    }
  });
}

// --- on the event loop's thread ---------------------------------------------------------------------

void UnixConnection::later(double seconds, void (UnixConnection::*task)()) {
  const auto wait = std::chrono::milliseconds(milliseconds(seconds));
  services_.event_loop.at(Clock::now() + wait, [weak = weak_from_this(), task] {
    if (const auto connection = weak.lock(); connection && !connection->ended_ && !connection->closed_) {
      (connection.get()->*task)();
    }
  });
}

void UnixConnection::connect() {
  if (ended_ || closed_) {
    return;
  }
  // This never blocks on a Unix socket.
  if (::connect(stream_->fd(), endpoint_.address(), endpoint_.address_size()) == 0) {
    greet();
    return;
  }
  const bool is_late =
      Clock::now() - opened_ >= std::chrono::milliseconds(milliseconds(services_.settings.handshake_timeout));
  if (errno == EAGAIN && !is_late) {
    later(kPause, &UnixConnection::connect);
  } else {
    report_end("cannot connect to " + endpoint_.text() + ": " + why_refused(errno));
  }
}

void UnixConnection::greet() {
  const std::string other = other_user(stream_->fd());
  if (!other.empty()) {
    report_end("cannot connect to " + endpoint_.text() + ": the listening process is " + other);
    return;
  }
  if (::send(stream_->fd(), &greeting_, sizeof greeting_, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof greeting_)) {
    report_end("handshake with " + endpoint_.text() + " failed: " + std::strerror(errno));
    return;
  }
  watch_ = services_.event_loop.watch(stream_->fd(), [weak = weak_from_this()] {
    if (const auto connection = weak.lock()) {
      connection->on_answer();
    }
  });
  later(services_.settings.handshake_timeout, &UnixConnection::on_tick);
}

void UnixConnection::on_answer() {
  if (ended_ || closed_) {
    return;
  }
  Answer answer{};
  size_t wanted = sizeof answer;
  for (;;) {
    if (answer_.size() >= sizeof answer) {
      std::memcpy(&answer, answer_.data(), sizeof answer);
      const bool is_one = std::memcmp(answer.form, kUnixForm, sizeof kUnixForm) == 0 &&
                          answer.text_size <= wire::kLongestReason &&
                          (answer.is_admitted == 0 || answer.text_size == 0);
      if (!is_one) {
        report_end("handshake with " + endpoint_.text() +
                   " failed: the listening process is not a worker of this version");
        return;
      }
      wanted = sizeof answer + answer.text_size;
    }
    if (answer_.size() == wanted) {
      break;
    }
    char buffer[sizeof answer + wire::kLongestReason];
    const ssize_t got = ::recv(stream_->fd(), buffer, wanted - answer_.size(), MSG_DONTWAIT);
    if (got == -1 && (errno == EAGAIN || errno == EINTR)) {
      return;
    }
    if (got <= 0) {
      report_end("handshake with " + endpoint_.text() + " failed: the connection ended during the handshake");
      return;
    }
    answer_.append(buffer, static_cast<size_t>(got));
  }
  if (answer.is_admitted == 0) {
    report_end("handshake with " + endpoint_.text() + " failed: " + answer_.substr(sizeof answer));
    return;
  }
  if (!expected_.empty() && std::memcmp(answer.proof, expected_.data(), kProofSize) != 0) {
    report_end("handshake with " + endpoint_.text() +
               " failed: the listening process cannot prove that it is the peer");
    return;
  }
  unwatch();
  up_since_ = Clock::now();
  listener_.on_up(shared_from_this());
  stream_->start();
  later(services_.settings.heartbeat / 2, &UnixConnection::on_tick);
}

void UnixConnection::on_tick() {
  if (up_since_ == Clock::time_point()) {
    report_end("handshake with " + endpoint_.text() + " failed: not finished within " +
               seconds_text(services_.settings.handshake_timeout));
    return;
  }
  if (stream_->check_liveness() >= std::chrono::milliseconds(milliseconds(services_.settings.heartbeat_timeout))) {
    report_end("no heartbeat from " + endpoint_.text() + " for " + seconds_text(services_.settings.heartbeat_timeout));
    return;
  }
  later(services_.settings.heartbeat / 2, &UnixConnection::on_tick);
}

void UnixConnection::unwatch() {
  if (const uint64_t watch = watch_.exchange(0); watch != 0) {
    services_.event_loop.unwatch(watch, stream_->fd());
  }
}

void UnixConnection::report_end(const std::string& reason) {
  if (!ended_) {
    ended_ = true;
    unwatch();
    stream_->abandon();
    listener_.on_end(shared_from_this(), reason);
  }
}

std::string UnixConnection::why_it_ended(const std::string& reason) const {
  if (!reason.empty()) {
    return reason;
  }
  int error = 0;
  endpoint_.probe(error);
  return error != 0 && error != EAGAIN
             ? "connection to " + endpoint_.text() + " lost; the peer no longer listens: " + why_refused(error)
             : "connection reset by " + endpoint_.text();
}

}  // namespace rpc_backends::zeromq
