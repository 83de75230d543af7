#include "unix_listener.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "tcp_listener.h"

namespace rpc_backends::zeromq {

namespace {

// Backlog for accept(): all workers of a group may connect at once.
constexpr int kBacklog = 1024;
// Connections without a complete greeting; only processes of this user can connect.
constexpr size_t kMaxPending = 256;
// Connections per peer: the current one, and earlier ones that still have messages.
constexpr size_t kMaxCallers = 4;
// How long to stop accepting when the process has too many files open.
constexpr std::chrono::milliseconds kPause{100};

constexpr const char* kUnknown = "its proof does not belong to any worker of the group";

Answer answer_with(const std::string& why, const std::string& proof) {
  Answer answer{};
  std::copy_n(kUnixForm, sizeof kUnixForm, answer.form);
  answer.is_admitted = why.empty() ? 1 : 0;
  answer.text_size = static_cast<uint32_t>(why.size());
  std::copy_n(proof.data(), std::min(proof.size(), kProofSize), answer.proof);
  return answer;
}

}  // namespace

UnixListener::~UnixListener() {
  close(0);
}

void UnixListener::bind(const std::string& path) {
  const Endpoint endpoint("ipc://" + path);
  auto socket = open_unix_socket();
  struct stat status{};
  if (::bind(socket->get(), endpoint.address(), endpoint.address_size()) != 0 ||
      ::listen(socket->get(), kBacklog) != 0 || (path[0] != '@' && ::lstat(path.c_str(), &status) != 0)) {
    throw BindError(errno, endpoint.text());
  }
  socket_ = std::move(socket);
  path_ = path;
  device_ = status.st_dev;
  number_ = status.st_ino;
  services_.event_loop.post([weak = weak_from_this()] {
    if (const auto listener = weak.lock()) {
      listener->watch();
    }
  });
}

void UnixListener::learn(int peer, const std::string& answer) {
  std::lock_guard<std::mutex> lock(mutex_);
  answers_[peer] = answer;
}

bool UnixListener::reply(int peer, Parts& parts) {
  std::shared_ptr<UnixStream> stream;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto caller = callers_.find(peer);
    if (caller == callers_.end() || caller->second.empty()) {
      return false;
    }
    stream = caller->second.back().stream;
  }
  if (!stream->send(std::move(parts))) {
    throw TransportError("worker " + std::to_string(peer) + " has closed the connection that carried the request");
  }
  return true;
}

void UnixListener::forget(int peer) {
  std::lock_guard<std::mutex> lock(mutex_);
  answers_.erase(peer);
  for (const Caller& caller : callers_[peer]) {
    caller.stream->forget("worker " + std::to_string(peer) + " has left the group");
  }
}

void UnixListener::reject(int peer, const std::string& reason) {
  std::vector<Caller> callers;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    callers = callers_[peer];
  }
  for (const Caller& caller : callers) {
    ++services_.counters.rejected;
    caller.stream->refuse(reason);
  }
}

void UnixListener::close(double linger) {
  std::unordered_map<int, std::vector<Caller>> callers;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    callers.swap(callers_);
  }
  remove_file();
  if (watch_ != 0) {
    services_.event_loop.unwatch(watch_, socket_->get());
    watch_ = 0;
  }
  const auto deadline = Clock::now() + std::chrono::milliseconds(milliseconds(linger));
  for (auto& [peer, of_peer] : callers) {
    for (const Caller& caller : of_peer) {
      caller.stream->close(deadline);
    }
  }
}

void UnixListener::remove_file() {
  struct stat status{};
  // Another process may listen there by now.
  if (!path_.empty() && path_[0] != '@' && ::lstat(path_.c_str(), &status) == 0 && status.st_dev == device_ &&
      status.st_ino == number_) {
    ::unlink(path_.c_str());
  }
  path_.clear();
}

// --- on the event loop's thread ---------------------------------------------------------------------

void UnixListener::watch() {
  watch_ = services_.event_loop.watch(socket_->get(), [weak = weak_from_this()] {
    if (const auto listener = weak.lock()) {
      listener->accept_all();
    }
  });
}

void UnixListener::accept_all() {
  for (;;) {
    const int fd = ::accept4(socket_->get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd == -1 && (errno == EINTR || errno == ECONNABORTED)) {
      continue;
    }
    if (fd == -1 && errno != EAGAIN) {
      // Too many files are open. The connection stays in the backlog; retrying at once would be a busy loop.
      services_.event_loop.unwatch(watch_, socket_->get());
      services_.event_loop.at(Clock::now() + kPause, [weak = weak_from_this()] {
        if (const auto listener = weak.lock()) {
          listener->watch();
        }
      });
    }
    if (fd == -1) {
      return;
    }
    auto socket = std::make_unique<Fd>(fd);
    const std::string other = other_user(fd);
    if (!other.empty()) {
      ++services_.counters.refused;
      callback_thread_.report("the process that connected to this worker's Unix socket is " + other);
      continue;
    }
    if (pending_.size() >= kMaxPending) {
      ++services_.counters.handshakes;
      drop(pending_.begin()->first);
    }
    const uint64_t id = next_id_++;
    Pending& pending = pending_[id];
    pending.fd = std::move(socket);
    pending.since = Clock::now();
    pending.watch = services_.event_loop.watch(fd, [weak = weak_from_this(), id] {
      if (const auto listener = weak.lock()) {
        listener->on_greeting(id);
      }
    });
    if (!expiring_) {
      expire();
    }
  }
}

// Drops connections whose handshake took too long.
void UnixListener::expire() {
  const auto longest = std::chrono::milliseconds(milliseconds(services_.settings.handshake_timeout));
  while (!pending_.empty() && Clock::now() - pending_.begin()->second.since >= longest) {
    ++services_.counters.handshakes;
    drop(pending_.begin()->first);
  }
  expiring_ = !pending_.empty();
  if (expiring_) {
    services_.event_loop.at(pending_.begin()->second.since + longest, [weak = weak_from_this()] {
      if (const auto listener = weak.lock()) {
        listener->expire();
      }
    });
  }
}

void UnixListener::on_greeting(uint64_t id) {
  Pending& pending = pending_.at(id);
  Greeting greeting{};
  char buffer[sizeof greeting];
  const ssize_t got = ::recv(pending.fd->get(), buffer, sizeof greeting - pending.greeting.size(), 0);
  if (got == -1 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (got <= 0) {
    ++services_.counters.handshakes;
    drop(id);
    return;
  }
  pending.greeting.append(buffer, static_cast<size_t>(got));
  const size_t form = std::min(pending.greeting.size(), sizeof kUnixForm);
  if (std::memcmp(pending.greeting.data(), kUnixForm, form) != 0) {
    refuse(id, "the connecting process is not a worker of this version");
  } else if (pending.greeting.size() == sizeof greeting) {
    std::memcpy(&greeting, pending.greeting.data(), sizeof greeting);
    identify(id, greeting);
  }
}

void UnixListener::identify(uint64_t id, const Greeting& greeting) {
  Pending& pending = pending_.at(id);
  services_.event_loop.unwatch(pending.watch, pending.fd->get());
  pending.watch = 0;
  if (greeting.worker < 0) {
    refuse(id, "the connecting process is not a worker of this version");
    return;
  }
  const std::string proof(greeting.proof, kProofSize);
  if (!services_.settings.wants_proofs) {
    admit(id, greeting, greeting.worker);
    return;
  }
  if (const std::optional<int> worker = directory_.owner(proof)) {
    admit(id, greeting, *worker);
    return;
  }
  if (!callback_thread_.can_look_up()) {
    refuse(id, kUnknown);
    return;
  }
  // The peer connected before this worker learned of it.
  const bool asked =
      callback_thread_.look_up(proof, [this, weak = weak_from_this(), id, greeting](std::optional<int> worker) {
        services_.event_loop.post([this, weak, id, greeting, worker] {
          const auto self = weak.lock();
          if (!self || pending_.count(id) == 0) {
            return;
          }
          if (worker) {
            admit(id, greeting, *worker);
          } else {
            refuse(id, kUnknown);
          }
        });
      });
  if (!asked) {
    refuse(id, "too many unknown processes connect at the same time");
  }
}

void UnixListener::admit(uint64_t id, const Greeting& greeting, int worker) {
  const std::string who = "worker " + std::to_string(greeting.worker);
  if (worker != greeting.worker || !directory_.admits(worker)) {
    refuse(id, worker != greeting.worker
                   ? "a process that claims to be " + who + " has the proof of worker " + std::to_string(worker)
                   : who + " has left the group");
    return;
  }
  std::string proof;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = answers_.find(worker);
    proof = entry == answers_.end() ? "" : entry->second;
  }
  Pending& pending = pending_.at(id);
  const Answer answer = answer_with("", proof);
  if (::send(pending.fd->get(), &answer, sizeof answer, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof answer)) {
    ++services_.counters.handshakes;
    drop(id);
    return;
  }
  enter(std::move(pending.fd), greeting);
  pending_.erase(id);
  on_arrival_(worker);
  if (!ticking_) {
    ticking_ = true;
    tick();
  }
}

void UnixListener::enter(std::unique_ptr<Fd> fd, const Greeting& greeting) {
  const int worker = greeting.worker;
  const uint64_t time = greeting.time;
  auto stream = std::make_shared<UnixStream>(services_, worker, std::move(fd),
                                             [this, weak = weak_from_this(), worker, time](const std::string& reason) {
                                               if (const auto self = weak.lock()) {
                                                 services_.event_loop.post([this, weak, worker, time, reason] {
                                                   if (const auto listening = weak.lock()) {
                                                     on_end(worker, time, reason);
                                                   }
                                                 });
                                               }
                                             });
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) {
      return;
    }
    std::vector<Caller>& of_peer = callers_[worker];
    if (of_peer.size() >= kMaxCallers) {
      of_peer.front().stream->close(Clock::now());
      of_peer.erase(of_peer.begin());
    }
    const auto after =
        std::find_if(of_peer.begin(), of_peer.end(), [&](const Caller& other) { return other.time > time; });
    of_peer.insert(after, {worker, time, stream});
  }
  stream->start();
}

void UnixListener::refuse(uint64_t id, const std::string& why) {
  ++services_.counters.refused;
  callback_thread_.report("a process on this host: " + why);
  const Answer answer = answer_with(why, "");
  const std::string text = std::string(reinterpret_cast<const char*>(&answer), sizeof answer) + why;
  // The answer fits into the socket's buffer. A process that does not read it does not get the reason.
  [[maybe_unused]] const ssize_t sent = ::send(pending_.at(id).fd->get(), text.data(), text.size(), MSG_NOSIGNAL);
  drop(id);
}

void UnixListener::drop(uint64_t id) {
  const auto pending = pending_.find(id);
  if (pending->second.watch != 0) {
    services_.event_loop.unwatch(pending->second.watch, pending->second.fd->get());
  }
  pending_.erase(pending);
}

void UnixListener::on_end(int worker, uint64_t time, const std::string& reason) {
  std::shared_ptr<UnixStream> ended;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Caller>& of_peer = callers_[worker];
    const auto entry =
        std::find_if(of_peer.begin(), of_peer.end(), [&](const Caller& caller) { return caller.time == time; });
    if (entry == of_peer.end()) {
      return;
    }
    ended = entry->stream;
    of_peer.erase(entry);
    if (of_peer.empty()) {
      callers_.erase(worker);
    }
  }
  if (!reason.empty()) {
    callback_thread_.report("worker " + std::to_string(worker) + ": " + reason);
  }
  ended->close(Clock::now());
}

// Ends connections on which nothing arrives for too long.
void UnixListener::tick() {
  std::vector<Caller> callers;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) {
      return;
    }
    for (const auto& [peer, of_peer] : callers_) {
      callers.insert(callers.end(), of_peer.begin(), of_peer.end());
    }
  }
  const auto longest = std::chrono::milliseconds(milliseconds(services_.settings.heartbeat_timeout));
  for (const Caller& caller : callers) {
    if (caller.stream->check_liveness() >= longest) {
      on_end(caller.worker, caller.time, "no heartbeat");
    }
  }
  const auto pause = std::chrono::milliseconds(milliseconds(services_.settings.heartbeat / 2));
  services_.event_loop.at(Clock::now() + pause, [weak = weak_from_this()] {
    if (const auto listener = weak.lock()) {
      listener->tick();
    }
  });
}

}  // namespace rpc_backends::zeromq
