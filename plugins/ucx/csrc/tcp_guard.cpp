#include "tcp_guard.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <ucp/api/ucp.h>
#include <ucs/sys/sock.h>
#include <unistd.h>

#include <cerrno>
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
  TcpGuard::Promise promise;
  bool is_sent = false;
  ConnectionKey::Tag answer{};
  size_t size = 0;  // of the answer, in bytes so far
};

// The sockets that guards watch over, by descriptor. UCX calls the functions below on its own threads too.
struct Sockets {
  std::mutex mutex;
  std::unordered_map<int, std::pair<TcpGuard*, std::unique_ptr<GuardedListener>>> listeners;
  std::unordered_map<int, Opened> opened;
  std::atomic<size_t> unanswered{0};  // the size of `opened`, which each receive looks at

  void forget(int fd) {
    listeners.erase(fd);
    opened.erase(fd);
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
    const auto found = sockets().listeners.find(fd);
    if (found != sockets().listeners.end()) {
      *accepted = found->second.second->accept();
      if (*accepted == -1) {
        return UCS_ERR_NO_PROGRESS;
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
        sockets().opened[fd].promise = *promise;
        sockets().unanswered = sockets().opened.size();
      }
    } catch (const std::exception&) {
      return UCS_ERR_NO_MEMORY;
    }
  }
  return ucs_socket_connect(fd, address);
}

ucs_status_t send(int fd, const void* data, size_t size) {
  if (sockets().unanswered.load(std::memory_order_relaxed) != 0) {
    std::lock_guard<std::mutex> lock(sockets().mutex);
    const auto found = sockets().opened.find(fd);
    if (found != sockets().opened.end() && !std::exchange(found->second.is_sent, true)) {
      // The buffer of a new connection has room for this. If the connection has failed, UCX's own data fails too.
      const ConnectionKey::Proof& proof = found->second.promise.proof;
      [[maybe_unused]] const ssize_t sent = ::send(fd, &proof, sizeof proof, MSG_NOSIGNAL | MSG_MORE);
    }
  }
  return ucs_socket_send(fd, data, size);
}

// Reads the answer to the proof. UCS_OK: it is complete and right.
ucs_status_t read_answer(int fd, Opened& opened) {
  auto* const bytes = reinterpret_cast<char*>(opened.answer.data());
  const ssize_t got = ::recv(fd, bytes + opened.size, sizeof opened.answer - opened.size, MSG_DONTWAIT);
  if (got == -1) {
    const bool waits = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    return waits ? UCS_ERR_NO_PROGRESS : UCS_ERR_CONNECTION_RESET;
  }
  if (got == 0) {
    return UCS_ERR_NOT_CONNECTED;
  }
  opened.size += static_cast<size_t>(got);
  if (opened.size < sizeof opened.answer) {
    return UCS_ERR_NO_PROGRESS;
  }
  return is_same(opened.answer, opened.promise.answer) ? UCS_OK : UCS_ERR_IO_ERROR;
}

ucs_status_t receive(int fd, void* data, int flags, size_t* size) {
  if (sockets().unanswered.load(std::memory_order_relaxed) != 0) {
    std::lock_guard<std::mutex> lock(sockets().mutex);
    const auto found = sockets().opened.find(fd);
    if (found != sockets().opened.end()) {
      const ucs_status_t status = read_answer(fd, found->second);
      if (status != UCS_OK) {
        *size = 0;
        return status;
      }
      sockets().forget(fd);
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

TcpGuard::TcpGuard(std::chrono::milliseconds time_limit, GuardedListener::OnRefused on_refused)
    : time_limit_(time_limit), on_refused_(std::move(on_refused)), connector_(random_number()) {
  is_in_force();
}

TcpGuard::~TcpGuard() {
  std::lock_guard<std::mutex> lock(sockets().mutex);
  std::erase_if(sockets().listeners, [this](const auto& entry) { return entry.second.first == this; });
}

void TcpGuard::set_key(const ConnectionKey::Bytes& bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  key_.emplace(bytes);
}

std::unique_ptr<GuardedListener> TcpGuard::guard(int listener) {
  auto guarded = std::make_unique<GuardedListener>(
      listener, time_limit_,
      [this](const ConnectionKey::Proof& proof, const std::string& receiver) { return check(proof, receiver); },
      on_refused_);
  ++listeners_;
  return guarded;
}

std::optional<TcpGuard::Promise> TcpGuard::promise(const std::string& receiver) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!key_) {
    return std::nullopt;
  }
  Promise promise;
  promise.proof = key_->prove(connector_, ++number_, receiver);
  promise.answer = key_->answer_to(promise.proof);
  return promise;
}

std::optional<ConnectionKey::Tag> TcpGuard::check(const ConnectionKey::Proof& proof, const std::string& receiver) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!key_ || !key_->is_valid(proof, receiver) || !used_.use(proof)) {
    return std::nullopt;
  }
  return key_->answer_to(proof);
}

TcpGuard* TcpGuard::Scope::enter(TcpGuard* guard) {
  return std::exchange(current, guard);
}

}  // namespace rpc_backends::ucx
