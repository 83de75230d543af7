#include "tcp_guard.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <ucp/api/ucp.h>
#include <ucs/sys/sock.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <unordered_map>
#include <utility>

#include "imports.h"

// UCX exports this function, but the header that declares it is not installed.
extern "C" ucs_status_t ucs_async_set_event_handler(int mode, int fd, int events, void (*handler)(int, int, void*),
                                                    void* argument, void* async);

namespace rpc_backends::ucx {

namespace {

thread_local TcpGuard* current = nullptr;

// A connection that UCX has opened, until the other end has answered the proof.
struct Opened {
  TcpGuard* guard = nullptr;
  TcpGuard::Promise promise;
  bool is_sent = false;
  std::string answer;  // received so far
  size_t wanted = sizeof(ConnectionKey::Tag);
};

// A connection of the owner of a certificate.
struct Proved {
  TcpGuard* guard = nullptr;
  Subject subject;
};

// The sockets that guards watch over, by descriptor. UCX calls the functions below on its own threads too.
struct Sockets {
  std::mutex mutex;
  std::unordered_map<int, std::pair<TcpGuard*, std::unique_ptr<GuardedListener>>> listeners;
  std::unordered_map<int, Opened> opened;
  std::unordered_map<int, Proved> proved;
  std::atomic<size_t> unanswered{0};  // the size of `opened`, which each receive looks at

  void forget(int fd) {
    listeners.erase(fd);
    opened.erase(fd);
    proved.erase(fd);
    unanswered = opened.size();
  }
};

Sockets& sockets() {
  static auto* const all = new Sockets;  // not destroyed at exit, because UCX's threads may still run
  return *all;
}

bool is_tcp_listener(int fd) {
  int domain = 0, listens = 0;
  socklen_t size = sizeof domain;
  if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || (domain != AF_INET && domain != AF_INET6)) {
    return false;
  }
  size = sizeof listens;
  return ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0;
}

// UCX has opened a listener and wants to know when it is ready. It gets the guard's descriptor under the same number.
ucs_status_t set_event_handler(int mode, int fd, int events, void (*handler)(int, int, void*), void* argument,
                               void* async) {
  if (current != nullptr && is_tcp_listener(fd)) {
    try {
      auto listener = current->guard(fd);
      std::lock_guard<std::mutex> lock(sockets().mutex);
      if (::dup3(listener->fd(), fd, O_CLOEXEC) == -1) {
        return UCS_ERR_IO_ERROR;
      }
      sockets().listeners[fd] = {current, std::move(listener)};
    } catch (const std::exception&) {
      return UCS_ERR_NO_RESOURCE;
    }
  }
  return ucs_async_set_event_handler(mode, fd, events, handler, argument, async);
}

ucs_status_t accept(int fd, sockaddr* address, socklen_t* size, int* accepted) {
  try {
    std::lock_guard<std::mutex> lock(sockets().mutex);
    const auto listener = sockets().listeners.find(fd);
    if (listener != sockets().listeners.end()) {
      const auto connection = listener->second.second->accept();
      *accepted = connection.fd;
      if (*accepted == -1) {
        return UCS_ERR_NO_PROGRESS;
      }
      if (connection.subject) {
        sockets().proved[*accepted] = {listener->second.first, *connection.subject};
      }
      ::getpeername(*accepted, address, size);
      return UCS_OK;
    }
  } catch (const std::exception&) {
    return UCS_ERR_NO_PROGRESS;
  }
  return ucs_socket_accept(fd, address, size, accepted);
}

ucs_status_t connect(int fd, const sockaddr* address) {
  if (current != nullptr) {
    try {
      const auto promise = current->promise(text_of_address(address));
      std::lock_guard<std::mutex> lock(sockets().mutex);
      sockets().forget(fd);
      if (promise) {
        sockets().opened[fd].guard = current;
        sockets().opened[fd].promise = *promise;
        sockets().unanswered = sockets().opened.size();
      }
    } catch (const std::exception&) {
      return UCS_ERR_NO_MEMORY;
    }
  }
  return ucs_socket_connect(fd, address);
}

// The buffer of a new connection has room for this, except for long certificates, which wait for the receiver's kernel.
bool send_proof(int fd, const std::string& bytes) {
  constexpr int patience = 1000;  // milliseconds
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t sent = ::send(fd, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL | MSG_MORE | MSG_DONTWAIT);
    if (sent >= 0) {
      at += static_cast<size_t>(sent);
      continue;
    }
    pollfd room{fd, POLLOUT, 0};
    const bool waits = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    if (!waits || ::poll(&room, 1, patience) == 0) {
      return false;
    }
  }
  return true;
}

ucs_status_t send(int fd, const void* data, size_t size) {
  if (sockets().unanswered.load(std::memory_order_relaxed) != 0) {
    std::lock_guard<std::mutex> lock(sockets().mutex);
    const auto connection = sockets().opened.find(fd);
    if (connection != sockets().opened.end() && !std::exchange(connection->second.is_sent, true) &&
        !send_proof(fd, connection->second.promise.bytes)) {
      return UCS_ERR_IO_ERROR;
    }
  }
  return ucs_socket_send(fd, data, size);
}

// Looks at what has come of the answer. UCS_OK: it is right, as far as it goes.
ucs_status_t check_answer(int fd, Opened& opened) {
  ConnectionKey::Tag tag{};
  std::memcpy(tag.data(), opened.answer.data(), sizeof tag);
  if (!is_same(tag, opened.promise.answer)) {
    return UCS_ERR_IO_ERROR;
  }
  if (!opened.guard->wants_identity()) {
    return UCS_OK;
  }
  if (opened.wanted == sizeof tag) {
    opened.wanted += sizeof(Identity::Head);
  } else if (opened.wanted == sizeof tag + sizeof(Identity::Head)) {
    const auto size = Identity::size_of(std::string_view(opened.answer).substr(sizeof tag));
    if (!size || *size == sizeof(Identity::Head)) {
      return UCS_ERR_IO_ERROR;
    }
    opened.wanted = sizeof tag + *size;
  } else {
    const auto subject = opened.guard->check_answer(opened.promise, opened.answer.substr(sizeof tag));
    if (!subject) {
      return UCS_ERR_IO_ERROR;
    }
    sockets().proved[fd] = {opened.guard, *subject};
  }
  return UCS_OK;
}

// Reads the answer to the proof. UCS_OK: it is complete and right.
ucs_status_t read_answer(int fd, Opened& opened) {
  const size_t before = opened.answer.size();
  opened.answer.resize(opened.wanted);
  const ssize_t got = ::recv(fd, opened.answer.data() + before, opened.wanted - before, MSG_DONTWAIT);
  const int error = errno;
  opened.answer.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
  if (got == -1) {
    const bool waits = error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
    return waits ? UCS_ERR_NO_PROGRESS : UCS_ERR_CONNECTION_RESET;
  }
  if (got == 0) {
    return UCS_ERR_NOT_CONNECTED;
  }
  if (opened.answer.size() < opened.wanted) {
    return UCS_ERR_NO_PROGRESS;
  }
  const ucs_status_t status = check_answer(fd, opened);
  if (status != UCS_OK || opened.answer.size() == opened.wanted) {
    return status;
  }
  return read_answer(fd, opened);  // there is more of it
}

ucs_status_t receive(int fd, void* data, int flags, size_t* size) {
  if (sockets().unanswered.load(std::memory_order_relaxed) != 0) {
    std::lock_guard<std::mutex> lock(sockets().mutex);
    const auto connection = sockets().opened.find(fd);
    if (connection != sockets().opened.end()) {
      const ucs_status_t status = read_answer(fd, connection->second);
      if (status != UCS_OK) {
        *size = 0;
        return status;
      }
      sockets().opened.erase(fd);
      sockets().unanswered = sockets().opened.size();
    }
  }
  return ucs_socket_recv_nb(fd, data, flags, size);
}

void close_fd(int* fd) {
  if (*fd != -1) {
    std::lock_guard<std::mutex> lock(sockets().mutex);
    sockets().forget(*fd);
  }
  ucs_close_fd(fd);
}

template <typename Function>
void* address_of(Function* function) {
  return reinterpret_cast<void*>(function);
}

bool install() {
  // Of several copies of UCX in this process, the one that this extension uses.
  Dl_info ucp{};
  if (::dladdr(address_of(&ucp_get_version), &ucp) == 0) {
    return false;
  }
  void* const library = ::dlopen(ucp.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) {
    return false;
  }
  void* const uct = ::dlsym(library, "uct_iface_open");
  ::dlclose(library);
  return uct != nullptr && replace_imports(uct, {{"ucs_async_set_event_handler", address_of(&set_event_handler)},
                                                 {"ucs_socket_accept", address_of(&accept)},
                                                 {"ucs_socket_connect", address_of(&connect)},
                                                 {"ucs_socket_send", address_of(&send)},
                                                 {"ucs_socket_recv_nb", address_of(&receive)},
                                                 {"ucs_close_fd", address_of(&close_fd)}});
}

uint64_t random_number() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

// The replacements must have the types of UCX's functions.
static_assert(std::is_same_v<decltype(&accept), decltype(&ucs_socket_accept)>);
static_assert(std::is_same_v<decltype(&connect), decltype(&ucs_socket_connect)>);
static_assert(std::is_same_v<decltype(&send), decltype(&ucs_socket_send)>);
static_assert(std::is_same_v<decltype(&receive), decltype(&ucs_socket_recv_nb)>);
static_assert(std::is_same_v<decltype(&close_fd), decltype(&ucs_close_fd)>);

bool TcpGuard::is_in_force() {
  static const bool is_installed = install();
  return is_installed;
}

TcpGuard::TcpGuard(std::chrono::milliseconds time_limit, const Identity* identity, OnRefused on_refused)
    : identity_(identity), time_limit_(time_limit), on_refused_(std::move(on_refused)), connector_(random_number()) {
  is_in_force();
}

TcpGuard::~TcpGuard() {
  std::lock_guard<std::mutex> lock(sockets().mutex);
  std::erase_if(sockets().listeners, [this](const auto& entry) { return entry.second.first == this; });
  std::erase_if(sockets().opened, [this](const auto& entry) { return entry.second.guard == this; });
  std::erase_if(sockets().proved, [this](const auto& entry) { return entry.second.guard == this; });
  sockets().unanswered = sockets().opened.size();
}

void TcpGuard::set_key(const ConnectionKey::Bytes& bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  key_.emplace(bytes);
}

std::unique_ptr<GuardedListener> TcpGuard::guard(int listener) {
  GuardedListener::Judge& judge = *this;  // a private base
  auto guarded = std::make_unique<GuardedListener>(listener, time_limit_, judge,
                                                   [this](const std::string& from, const std::string& why) {
                                                     on_refused_("a process connects from " + from + " " + why);
                                                   });
  ++listeners_;
  return guarded;
}

std::optional<TcpGuard::Promise> TcpGuard::promise(const std::string& receiver) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!key_) {
    return std::nullopt;
  }
  Promise promise;
  promise.receiver = receiver;
  promise.proof = key_->prove(connector_, ++number_, receiver);
  promise.answer = key_->answer_to(promise.proof);
  promise.bytes.assign(reinterpret_cast<const char*>(&promise.proof), sizeof promise.proof);
  if (identity_ != nullptr) {
    promise.bytes += identity_->prove(key_->connector_states(promise.proof, receiver), {});
  }
  return promise;
}

bool TcpGuard::is_valid(const ConnectionKey::Proof& proof, const std::string& receiver) {
  std::lock_guard<std::mutex> lock(mutex_);
  return key_ && key_->is_valid(proof, receiver);
}

std::string TcpGuard::answer(const ConnectionKey::Proof& proof, const std::string& identity,
                             const std::string& receiver, std::optional<Subject>& subject) {
  std::lock_guard<std::mutex> lock(mutex_);
  Identity::Proved proved;
  if (identity_ != nullptr) {
    proved = identity_->check(identity, key_->connector_states(proof, receiver), false);
    subject = proved.subject;
  }
  if (!used_.use(proof)) {  // last, so that only members take memory for what they have used
    throw TransportError("its proof was used before");
  }
  const ConnectionKey::Tag tag = key_->answer_to(proof);
  std::string bytes(reinterpret_cast<const char*>(tag.data()), sizeof tag);
  if (identity_ != nullptr) {
    bytes += identity_->prove(key_->receiver_states(proof), proved.certificates);
  }
  return bytes;
}

std::optional<Subject> TcpGuard::check_answer(const Promise& promise, const std::string& identity) {
  std::lock_guard<std::mutex> lock(mutex_);
  try {
    return identity_->check(identity, key_->receiver_states(promise.proof), true).subject;
  } catch (const TransportError& error) {
    on_refused_("the process at " + promise.receiver + " is refused: " + error.what());
    return std::nullopt;
  }
}

void TcpGuard::end_revoked() {
  std::lock_guard<std::mutex> lock(sockets().mutex);
  for (const auto& [fd, proved] : sockets().proved) {
    if (proved.guard == this && identity_->is_revoked(proved.subject)) {
      ::shutdown(fd, SHUT_RDWR);  // UCX closes it
    }
  }
}

TcpGuard* TcpGuard::Scope::enter(TcpGuard* guard) {
  return std::exchange(current, guard);
}

}  // namespace rpc_backends::ucx
