#include "acceptor.h"

#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <utility>

#include "endpoint.h"
#include "memory_shortage.h"

namespace rpc_backends::zeromq {

namespace {

// Connections that may be in their handshakes at once, in addition to one per known worker.
constexpr size_t kMaxPending = 128;
// The same on a Unix socket, to which only processes of this user can connect.
constexpr size_t kMaxPendingOnUnix = 256;
// Kept even if few descriptors are left, so that peers can finish their handshakes.
constexpr size_t kFewest = 8;
// Connections that are accepted in one go, so that other tasks get their turn.
constexpr int kBatch = 64;
// How long to stop accepting when no descriptor is left.
constexpr std::chrono::milliseconds kPause{100};

Answer answer_with(const std::string& why, const std::string& proof) {
  Answer answer{};
  std::copy_n(kForm, sizeof kForm, answer.form);
  answer.is_admitted = why.empty() ? 1 : 0;
  answer.text_size = static_cast<uint32_t>(why.size());
  set_proof(answer.proof, proof);
  return answer;
}

// Returns whether all of it was sent. It fits into the buffer of the socket.
bool send_all(Channel& channel, const std::string& data) {
  const iovec place{const_cast<char*>(data.data()), data.size()};
  return channel.write(&place, 1) == static_cast<ssize_t>(data.size()) && channel.flush();
}

std::string bytes_of(const Answer& answer) {
  return {reinterpret_cast<const char*>(&answer), sizeof answer};
}

}  // namespace

Acceptor::Acceptor(const Services& services, std::weak_ptr<Owner> owner, std::unique_ptr<Fd> socket,
                   std::string endpoint)
    : services_(services),
      settings_(services.of_streams.settings),
      event_loop_(services.of_streams.event_loop),
      owner_(std::move(owner)),
      socket_(std::move(socket)),
      endpoint_(std::move(endpoint)),
      is_unix_(endpoint_.compare(0, 3, "ipc") == 0),
      spare_(std::in_place, eventfd(0, EFD_CLOEXEC)) {}

void Acceptor::start() {
  event_loop_.post([weak = weak_from_this()] {
    if (const auto acceptor = weak.lock()) {
      acceptor->resume();
    }
  });
}

void Acceptor::stop() {
  while (!pending_.empty()) {
    drop(pending_.begin()->first);
  }
  if (watch_ != 0) {
    event_loop_.unwatch(std::exchange(watch_, 0), socket_->get());
  }
}

void Acceptor::watch_socket() {
  watch_ = event_loop_.watch(socket_->get(), [weak = weak_from_this()] {
    if (const auto acceptor = weak.lock()) {
      acceptor->accept_all();
    }
  });
}

void Acceptor::resume() {
  try {
    watch_socket();
  } catch (const std::exception&) {  // memory is short
    pause();
  }
}

// --- accepting --------------------------------------------------------------------------------------

void Acceptor::accept_all() {
  size_t ended = 0;
  for (int i = 0; i < kBatch; ++i) {
    const int fd = ::accept4(socket_->get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd == -1 && errno == EAGAIN) {
      break;
    }
    if (fd == -1 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
      ended += make_room();
      break;
    }
    if (fd == -1) {  // the connection has ended already
      continue;
    }
    try_to_add(fd);
    ended += keep(allowed(fd));
  }
  report_evicted(ended);
  if (!expiring_ && !pending_.empty()) {
    expire();
  }
}

// Closes a connection for which memory is short.
void Acceptor::try_to_add(int fd) {
  const uint64_t id = next_id_;
  std::unique_ptr<Fd> connection;
  try {
    connection = std::make_unique<Fd>(fd);
  } catch (const std::bad_alloc&) {
    ::close(fd);
    return;
  }
  try {
    add(std::move(connection));
  } catch (const std::exception&) {
    pending_.erase(id);
  }
}

void Acceptor::add(std::unique_ptr<Fd> fd) {
  if (is_unix_) {
    const std::string stranger = other_user(fd->get());
    if (!stranger.empty()) {
      ++services_.of_streams.counters.refused;
      services_.callback_thread.report("the process that connected to this worker's Unix socket is " + stranger);
      return;
    }
  }
  tune(fd->get(), settings_.heartbeat_timeout);
  const uint64_t id = next_id_++;
  Pending& pending = pending_[id];
  pending.address = is_unix_ ? "a process on this host" : peer_address(fd->get());
  pending.since = Clock::now();
  if (settings_.encrypts(is_unix_)) {
    std::unique_ptr<TlsChannel> channel = services_.of_streams.tls->listening(std::move(fd));
    pending.tls = channel.get();
    pending.channel = std::move(channel);
  } else {
    pending.is_secure = true;
    pending.channel = std::make_unique<Channel>(std::move(fd));
  }
  watch(id, EPOLLIN);
}

// The system assigns the lowest free number, so all numbers below the newest are in use.
size_t Acceptor::allowed(int newest) const {
  const size_t most = is_unix_ ? kMaxPendingOnUnix : kMaxPending + services_.keys.size();
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return most;
  }
  const int64_t others = newest + 1 - static_cast<int64_t>(pending_.size());
  const int64_t room = static_cast<int64_t>(limit.rlim_cur) - kSpare - others;
  return std::min(most, static_cast<size_t>(std::max<int64_t>(room, kFewest)));
}

// Ends the oldest connections until at most `number` remain; returns how many were ended.
size_t Acceptor::keep(size_t number) {
  size_t ended = 0;
  for (; pending_.size() > number; ++ended) {
    drop(pending_.begin()->first);
  }
  return ended;
}

// No descriptor is left. Returns how many connections were ended.
size_t Acceptor::make_room() {
  if (!pending_.empty()) {
    return keep(pending_.size() / 2);
  }
  turn_away();
  pause();
  return 0;
}

// Accepts and closes connections that wait, so that their processes learn of it.
void Acceptor::turn_away() {
  spare_.reset();
  for (int i = 0; i < kBatch; ++i) {
    const int fd = ::accept4(socket_->get(), nullptr, nullptr, SOCK_CLOEXEC);
    if (fd == -1) {
      break;
    }
    ::close(fd);
    ++services_.of_streams.counters.handshakes;
  }
  if (const int fd = eventfd(0, EFD_CLOEXEC); fd != -1) {
    spare_.emplace(fd);
  }
}

// Trying again at once would be a busy loop.
void Acceptor::pause() {
  insist([&] {
    event_loop_.at(Clock::now() + kPause, [weak = weak_from_this()] {
      if (const auto acceptor = weak.lock()) {
        acceptor->resume();
      }
    });
  });
  if (watch_ != 0) {
    event_loop_.unwatch(std::exchange(watch_, 0), socket_->get());
  }
}

void Acceptor::report_evicted(size_t ended) {
  if (ended == 0) {
    return;
  }
  if (is_unix_) {
    services_.of_streams.counters.handshakes += ended;
    return;
  }
  services_.of_streams.counters.evicted += ended;
  services_.callback_thread.report(std::to_string(ended) +
                                   " unauthenticated connections were closed: there were "
                                   "too many at a time, or too few descriptors were left (ulimit -n)");
}

// Drops connections whose handshake took too long.
void Acceptor::expire() {
  const auto longest = std::chrono::milliseconds(milliseconds(settings_.handshake_timeout));
  while (!pending_.empty() && Clock::now() - pending_.begin()->second.since >= longest) {
    ++services_.of_streams.counters.handshakes;
    drop(pending_.begin()->first);
  }
  expiring_ = false;
  if (pending_.empty()) {
    return;
  }
  insist([&] {
    event_loop_.at(pending_.begin()->second.since + longest, [weak = weak_from_this()] {
      if (const auto acceptor = weak.lock()) {
        acceptor->expire();
      }
    });
  });
  expiring_ = true;
}

// --- the handshake ----------------------------------------------------------------------------------

void Acceptor::watch(uint64_t id, uint32_t events) {
  Pending& pending = pending_.at(id);
  if (pending.events == events) {
    return;
  }
  if (pending.watch != 0) {
    event_loop_.unwatch(std::exchange(pending.watch, 0), pending.channel->fd());
  }
  pending.events = events;
  if (events != 0) {
    pending.watch = event_loop_.watch(
        pending.channel->fd(),
        [weak = weak_from_this(), id] {
          if (const auto acceptor = weak.lock(); acceptor && acceptor->pending_.count(id) != 0) {
            acceptor->go_on(id);
          }
        },
        events);
  }
}

void Acceptor::go_on(uint64_t id) {
  Pending& pending = pending_.at(id);
  if ((pending.is_secure || shake_hands(id)) && read_greeting(id)) {
    Greeting greeting{};
    std::memcpy(&greeting, pending.greeting.data(), sizeof greeting);
    identify(id, greeting);
  }
}

// Returns whether the handshake has ended; otherwise `id` may be dropped.
bool Acceptor::shake_hands(uint64_t id) {
  Pending& pending = pending_.at(id);
  switch (pending.tls->shake_hands()) {
    case TlsChannel::Handshake::kDone:
      pending.is_secure = true;
      watch(id, EPOLLIN);
      return true;
    case TlsChannel::Handshake::kNeedsData:
      watch(id, EPOLLIN);
      break;
    case TlsChannel::Handshake::kNeedsRoom:
      watch(id, EPOLLOUT);
      break;
    case TlsChannel::Handshake::kFailed:
      fail(id, pending.tls->failure());
      break;
  }
  return false;
}

// Returns whether the greeting is complete; otherwise `id` may be dropped.
bool Acceptor::read_greeting(uint64_t id) {
  Pending& pending = pending_.at(id);
  char buffer[sizeof(Greeting)];
  const ssize_t got = pending.channel->read(buffer, sizeof buffer - pending.greeting.size());
  if (got == -1 && errno == EAGAIN) {
    return false;
  }
  if (got <= 0) {
    fail(id, kEnded);
    return false;
  }
  pending.greeting.append(buffer, static_cast<size_t>(got));
  const std::string& greeting = pending.greeting;
  if (greeting.compare(0, sizeof kForm, kForm, std::min(greeting.size(), sizeof kForm)) != 0) {
    if (begins_as_tls(greeting)) {
      fail(id, kOneEncrypts);
    } else {
      refuse(id, kOtherVersion);
    }
    return false;
  }
  return greeting.size() == sizeof(Greeting);
}

void Acceptor::identify(uint64_t id, const Greeting& greeting) {
  watch(id, 0);
  const Pending& pending = pending_.at(id);
  if (greeting.worker < 0) {
    refuse(id, kOtherVersion);
  } else if (settings_.needs_proofs(is_unix_)) {
    look_up(id, greeting, services_.proofs, std::string(greeting.proof, kProofSize));
  } else if (pending.tls != nullptr) {
    look_up(id, greeting, services_.keys, pending.tls->peer_key());
  } else {
    admit(id, greeting, greeting.worker);
  }
}

void Acceptor::look_up(uint64_t id, const Greeting& greeting, Directory& directory, const std::string& key) {
  if (const std::optional<int> worker = directory.owner(key)) {
    admit(id, greeting, *worker);
    return;
  }
  if (!services_.callback_thread.can_look_up()) {
    refuse_unknown(id, "any worker that this worker knows");
    return;
  }
  // The peer connected before this worker learned of it.
  const bool asked = services_.callback_thread.look_up(
      key, [this, weak = weak_from_this(), id, greeting, key](std::optional<int> worker) {
        event_loop_.post([this, weak, id, greeting, key, worker] {
          const auto self = weak.lock();
          if (!self || pending_.count(id) == 0) {
            return;
          }
          if (!worker) {
            refuse_unknown(id, "any worker of the group");
            return;
          }
          if (!settings_.needs_proofs(is_unix_) && services_.keys.admits(*worker)) {
            services_.keys.learn(*worker, key);
          }
          admit(id, greeting, *worker);
        });
      });
  if (!asked) {
    refuse(id, "too many unknown processes connect at the same time");
  }
}

void Acceptor::refuse_unknown(uint64_t id, const char* why) {
  const Pending& pending = pending_.at(id);
  if (settings_.needs_proofs(is_unix_)) {
    refuse(id, "its proof does not belong to any worker of the group");
  } else {
    refuse(id, "the peer does not know this worker's key",
           pending.address + ": its public key is " + pending.tls->peer_key() + ", and it does not belong to " + why);
  }
}

void Acceptor::admit(uint64_t id, const Greeting& greeting, int worker) {
  Pending& pending = pending_.at(id);
  const std::string who = "worker " + std::to_string(greeting.worker);
  if (worker != greeting.worker) {
    refuse(id, "a process that claims to be " + who + " has the " +
                   (settings_.needs_proofs(is_unix_) ? "proof" : "key") + " of worker " + std::to_string(worker));
    return;
  }
  if (!services_.keys.admits(worker)) {
    refuse(id, who + " has left the group");
    return;
  }
  if (settings_.certificates && pending.tls->peer_key() != services_.keys.key(worker)) {
    refuse(id, "this worker does not accept the certificate",
           pending.address + ": a process that claims to be " + who + " has the certificate of " +
               pending.tls->peer().text() + ", which is not the identity that this worker has published");
    return;
  }
  if (settings_.certificates && services_.of_streams.tls->revoked().covers(pending.tls->peer())) {
    // Since the handshake. Later, the owner ends its connection.
    refuse(id, "this worker does not accept the certificate",
           pending.address + ": the certificate of " + pending.tls->peer().text() + " is revoked");
    return;
  }
  const auto owner = owner_.lock();
  if (const std::string why = owner ? owner->refusal(greeting) : ""; !why.empty()) {
    refuse(id, who + ": " + why);
    return;
  }
  if (!owner ||
      !send_all(*pending.channel,
                bytes_of(answer_with("", settings_.needs_proofs(is_unix_) ? owner->answer_for(worker) : "")))) {
    fail(id, kEnded);
    return;
  }
  owner->enter(std::move(pending.channel), greeting);
  pending_.erase(id);
}

void Acceptor::refuse(uint64_t id, const std::string& why) {
  refuse(id, why, pending_.at(id).address + ": " + why);
}

void Acceptor::refuse(uint64_t id, const std::string& to_peer, const std::string& to_log) {
  ++services_.of_streams.counters.refused;
  services_.callback_thread.report(to_log);
  // A process that does not read the answer does not get the reason.
  Channel& channel = *pending_.at(id).channel;
  if (send_all(channel, bytes_of(answer_with(to_peer, "")) + to_peer)) {
    channel.finish();
  }
  drop(id);
}

void Acceptor::fail(uint64_t id, const std::string& why) {
  ++services_.of_streams.counters.handshakes;
  // A connection that ends is perhaps a port scan, which is not worth a line.
  if ((!is_unix_ || settings_.certificates) && why != kEnded) {
    services_.callback_thread.report("a connection to " + endpoint_ + ": " + why);
  }
  drop(id);
}

void Acceptor::drop(uint64_t id) {
  watch(id, 0);
  pending_.erase(id);
}

}  // namespace rpc_backends::zeromq
