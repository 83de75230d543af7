#include "guarded_listener.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace rpc_backends::ucx {

namespace {

constexpr size_t kMostPending = 512;
// Pending connections take at most this share of the descriptors that the process may have.
constexpr size_t kShare = 8;
constexpr size_t kFewestPending = 8;
// Events handled in one go, because the caller holds UCX's lock.
constexpr int kMostEvents = 64;
// How long to leave connections in the kernel's queue if no descriptor is left.
constexpr std::chrono::milliseconds kPause{20};

int copy_of_fd(int fd) {
  return ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

size_t most_pending() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return kMostPending;
  }
  return std::clamp(static_cast<size_t>(limit.rlim_cur) / kShare, kFewestPending, kMostPending);
}

std::string local_address(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return {};
  }
  return text_of_address(reinterpret_cast<const sockaddr*>(&address));
}

bool add_to(int epoll, int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

GuardedListener::GuardedListener(int listener, std::chrono::milliseconds time_limit, Judge& judge, OnRefused on_refused)
    : listener_(copy_of_fd(listener)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)),
      time_limit_(time_limit),
      judge_(judge),
      on_refused_(std::move(on_refused)),
      spare_(std::in_place, copy_of_fd(timer_.get())) {
  if (!add_to(epoll_.get(), listener_.get(), EPOLLIN) || !add_to(epoll_.get(), timer_.get(), EPOLLIN)) {
    throw TransportError(std::string("the transport cannot wait for connections: ") + std::strerror(errno));
  }
}

GuardedListener::Accepted GuardedListener::accept() {
  for (int i = 0; i < kMostEvents; ++i) {
    // One at a time: the kernel takes turns among those that are ready, so no sender holds up the others.
    epoll_event event{};
    if (::epoll_wait(epoll_.get(), &event, 1, 0) != 1) {
      return {};
    }
    if (event.data.fd == timer_.get()) {
      run_timer();
      continue;
    }
    if (event.data.fd == listener_.get()) {
      add();
      continue;
    }
    const auto entry = by_fd_.find(event.data.fd);
    if (entry == by_fd_.end()) {
      continue;
    }
    const auto pending = entry->second;
    const Outcome outcome = read(*pending);
    if (outcome == Outcome::kClosed) {
      erase(pending);
    } else if (outcome == Outcome::kRefused) {
      refuse(pending);
    } else if (outcome == Outcome::kProved) {
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, event.data.fd, nullptr);
      by_fd_.erase(entry);
      const Accepted accepted{std::exchange(pending->fd, -1), std::move(pending->subject)};
      pending_.erase(pending);
      return accepted;
    }
  }
  return {};
}

void GuardedListener::add() {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  const int fd = ::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd == -1) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      make_room();
    }
    return;
  }
  Pending& pending = pending_.emplace_back(fd);
  pending.deadline = Clock::now() + time_limit_;
  pending.from = text_of_address(reinterpret_cast<const sockaddr*>(&address));
  if (!add_to(epoll_.get(), fd, EPOLLIN | EPOLLRDHUP)) {
    pending_.pop_back();
    return;
  }
  by_fd_[fd] = std::prev(pending_.end());
  keep(most_pending());
  if (pending_.size() == 1) {
    set_timer();
  }
}

GuardedListener::Outcome GuardedListener::read(Pending& pending) {
  if (!pending.answer.empty()) {
    return send_answer(pending);
  }
  // Not a byte more than the proof, because what follows is for UCX.
  const size_t before = pending.bytes.size();
  pending.bytes.resize(pending.wanted);
  const ssize_t got = ::recv(pending.fd, pending.bytes.data() + before, pending.wanted - before, MSG_DONTWAIT);
  const int error = errno;
  pending.bytes.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
  if (got == -1) {
    return error == EAGAIN || error == EINTR ? Outcome::kWaits : Outcome::kClosed;
  }
  return got == 0 ? Outcome::kClosed : judge(pending);
}

GuardedListener::Outcome GuardedListener::judge(Pending& pending) {
  constexpr size_t first = sizeof(ConnectionKey::Proof);
  ConnectionKey::Proof proof;
  if (std::memcmp(pending.bytes.data(), &proof.magic, std::min(pending.bytes.size(), sizeof proof.magic)) != 0) {
    return Outcome::kRefused;
  }
  if (pending.bytes.size() < pending.wanted) {
    return Outcome::kWaits;
  }
  std::memcpy(&proof, pending.bytes.data(), sizeof proof);
  if (pending.wanted == first) {
    pending.receiver = local_address(pending.fd);
    if (!judge_.is_valid(proof, pending.receiver)) {
      return Outcome::kRefused;
    }
    if (judge_.wants_identity()) {
      pending.wanted += sizeof(Identity::Head);
      return Outcome::kWaits;
    }
  } else if (pending.wanted == first + sizeof(Identity::Head)) {
    const auto size = Identity::size_of(std::string_view(pending.bytes).substr(first));
    if (!size || *size == sizeof(Identity::Head)) {
      pending.why = "with certificates that are invalid or too long";
      return Outcome::kRefused;
    }
    pending.wanted = first + *size;
    return Outcome::kWaits;
  }
  try {
    pending.answer = judge_.answer(proof, pending.bytes.substr(first), pending.receiver, pending.subject);
  } catch (const TransportError& error) {
    pending.why = std::string("and is refused: ") + error.what();
    return Outcome::kRefused;
  }
  return send_answer(pending);
}

GuardedListener::Outcome GuardedListener::send_answer(Pending& pending) {
  const ssize_t sent = ::send(pending.fd, pending.answer.data(), pending.answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent == -1 && errno != EAGAIN && errno != EINTR) {
    return Outcome::kClosed;
  }
  pending.answer.erase(0, static_cast<size_t>(std::max<ssize_t>(sent, 0)));
  if (pending.answer.empty()) {
    return Outcome::kProved;
  }
  epoll_event event{};
  event.events = EPOLLOUT | EPOLLRDHUP;
  event.data.fd = pending.fd;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, pending.fd, &event);
  return Outcome::kWaits;
}

void GuardedListener::erase(Oldest::iterator pending) {
  by_fd_.erase(pending->fd);
  pending_.erase(pending);
}

void GuardedListener::refuse(Oldest::iterator pending) {
  const std::string from = std::move(pending->from), why = std::move(pending->why);
  erase(pending);
  on_refused_(from, why);
}

void GuardedListener::keep(size_t number) {
  while (pending_.size() > number) {
    refuse(pending_.begin());
  }
}

// No descriptor is left for a connection that waits to be accepted.
void GuardedListener::make_room() {
  if (!pending_.empty()) {
    keep(pending_.size() / 2);
    return;
  }
  spare_.reset();
  const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
  if (fd != -1) {
    ::close(fd);
  }
  const int spare = copy_of_fd(timer_.get());
  if (spare != -1) {
    spare_.emplace(spare);
  }
  if (fd == -1 || spare == -1) {
    watch_listener(false);
    resume_ = Clock::now() + kPause;
    set_timer();
  }
}

void GuardedListener::watch_listener(bool is_watched) {
  epoll_event event{};
  event.events = is_watched ? static_cast<uint32_t>(EPOLLIN) : 0;
  event.data.fd = listener_.get();
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event);
}

void GuardedListener::run_timer() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t size = ::read(timer_.get(), &count, sizeof count);
  const auto now = Clock::now();
  if (resume_ && *resume_ <= now) {
    resume_.reset();
    watch_listener(true);
  }
  while (!pending_.empty() && pending_.front().deadline <= now) {
    refuse(pending_.begin());
  }
  set_timer();
}

void GuardedListener::set_timer() {
  std::optional<Clock::time_point> next = resume_;
  if (!pending_.empty() && (!next || pending_.front().deadline < *next)) {
    next = pending_.front().deadline;
  }
  itimerspec time{};  // all zero stops the timer
  if (next) {
    const auto wait = std::max<std::chrono::nanoseconds>(*next - Clock::now(), std::chrono::milliseconds(1));
    time.it_value.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(wait).count();
    time.it_value.tv_nsec = (wait % std::chrono::seconds(1)).count();
  }
  ::timerfd_settime(timer_.get(), 0, &time, nullptr);
}

}  // namespace rpc_backends::ucx
