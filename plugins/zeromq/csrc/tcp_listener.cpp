#include "tcp_listener.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "wire.h"
#include "zap.h"

namespace rpc_backends::zeromq {

namespace {

// Connections per peer: the current one, and earlier ones that still have messages.
constexpr size_t kMaxCallers = 4;

// Backlog for accept(): all workers of a group may connect at once.
constexpr int kBacklog = 1024;

// Connections that may be in their handshakes at once, in addition to one per known worker.
constexpr size_t kMaxPending = 128;

// Monitor events handled in one go, so that other tasks get their turn.
constexpr int kMaxSocketEvents = 1000;

}  // namespace

BindError::BindError(int error, const std::string& where)
    : TransportError("cannot listen on " + where + ": " + text_of(error)), number(error), endpoint(where) {}

TcpListener::TcpListener(const Services& services, std::function<void(int)> on_arrival)
    : SocketSource(services.inbox, services.counters), services_(services), on_arrival_(std::move(on_arrival)) {}

TcpListener::~TcpListener() {
  close(0);
}

void TcpListener::open() {
  using namespace monitor_event;
  const Settings& settings = services_.settings;
  Lock lock(mutex_);
  Socket socket(services_.context, socket_type::kRouter);
  socket.set(option::kRouterMandatory, 1);
  socket.set(option::kBacklog, kBacklog);
  socket.set(option::kHandshakeIvl, milliseconds(settings.handshake_timeout));
  socket.watch_for_silence(settings);
  socket.set(option::kMaxMsgSize, wire::on_wire(settings.largest_frame()));
  // Makes libzmq ask Zap even without encryption, and reject peers whose protocol version is too old for ZAP.
  socket.set(option::kZapDomain, std::string(Zap::kDomain));
  if (settings.encrypts()) {
    socket.set(option::kCurveServer, 1);
    socket.set(option::kCurveSecretKey, settings.secret_key);
  }
  monitor_ = std::make_unique<Monitor>(
      services_.context, socket, "tcp_listener",
      kListening | kAccepted | kAcceptFailed | kDisconnected | kHandshakeFailed | kHandshakeFailedProtocol);
  monitor_fd_ = monitor_->fd();
  watch_ = services_.event_loop.watch(monitor_fd_, monitor_task());
  enter(std::move(socket));
}

std::string TcpListener::bind(const std::string& endpoint) {
  Lock lock(mutex_);
  if (!socket_) {
    throw TransportError("the transport is closed");
  }
  // Only for IPv6 endpoints: otherwise libzmq would report IPv4 addresses as IPv6 ones.
  socket_->set(option::kIpv6, endpoint.find('[') == std::string::npos ? 0 : 1);
  if (endpoint.find('\0') != std::string::npos || !socket_->bind(endpoint)) {
    throw BindError(errno, endpoint);
  }
  std::string bound = socket_->last_endpoint();
  drain(std::move(lock));
  return bound;
}

void TcpListener::reply(int peer, Packed& message) {
  Lock lock(mutex_);
  const auto callers = by_peer_.find(peer);
  while (socket_ && callers != by_peer_.end() && !callers->second.empty()) {
    Caller* const newest = callers->second.back();
    if (message.send(*socket_, newest->route.text)) {
      settle(std::move(lock));
      return;
    }
    erase(newest);
    if (message.begun()) {
      break;
    }
  }
  if (socket_) {
    settle(std::move(lock));
  }
  throw TransportError("worker " + std::to_string(peer) + " has closed the connection that carried the request");
}

void TcpListener::forget(int peer) {
  Lock lock(mutex_);
  const auto callers = by_peer_.find(peer);
  if (callers != by_peer_.end()) {
    for (Caller* const caller : callers->second) {
      caller->closed = "worker " + std::to_string(peer) + " has left the group";
    }
  }
}

void TcpListener::reject(int peer, const std::string& reason) {
  Lock lock(mutex_);
  const auto callers = by_peer_.find(peer);
  if (!socket_ || callers == by_peer_.end()) {
    return;
  }
  for (Caller* const caller : callers->second) {
    if (caller->closed.empty()) {
      ++counters_.rejected;
      close_caller(*caller, reason);
    }
  }
  settle(std::move(lock));
}

void TcpListener::close(double linger) {
  Lock lock(mutex_);
  if (!socket_) {
    return;
  }
  std::optional<Socket> socket = leave();
  if (linger > 0) {
    socket->linger(linger);
  }
  services_.event_loop.unwatch(watch_, monitor_fd_);
}

// --- receiving -------------------------------------------------------------------------------------

SocketSource::Read TcpListener::read_one() {
  Read read;
  Frame name, first;
  if (!socket_->receive(name)) {
    return read;
  }
  read.kind = Read::Kind::kDone;
  if (!name.more() || !socket_->receive(first)) {
    return read;
  }
  Caller* const caller = find(name, first);
  if (caller == nullptr) {
    drop(std::move(first));
    return read;
  }
  if (!std::exchange(caller->begun, true) && first.size() == 0 && !first.more()) {
    return read;
  }
  Assembler::Outcome outcome = caller->assembler.take(std::move(first), *socket_);
  if (caller->assembler.is_in_message()) {
    caller->last_frame = Clock::now();
    schedule_check();
  }
  switch (outcome.kind) {
    case Assembler::Outcome::Kind::kMessage:
      push(caller->route.worker, std::move(outcome.parts));
      break;
    case Assembler::Outcome::Kind::kPiece:
      read.kind = Read::Kind::kPiece;
      read.peer = caller->route.worker;
      read.piece = std::move(outcome.piece);
      break;
    case Assembler::Outcome::Kind::kMalformed:
      ++counters_.rejected;
      services_.callback_thread.report("worker " + std::to_string(caller->route.worker) +
                                       " sent an invalid message, and its connection is rejected: " + outcome.text);
      close_caller(*caller, outcome.text);
      break;
    default:
      break;
  }
  return read;
}

// Returns the caller whose message begins with `name` and `first`; null if the message must be dropped.
TcpListener::Caller* TcpListener::find(Frame& name, const Frame& first) {
  const auto entry = callers_.find(std::string(name.data(), name.size()));
  Caller* const caller = entry == callers_.end() ? admit(name, first) : entry->second.get();
  // The handshake authenticated the user; the name is only a claim.
  if (caller == nullptr || caller->user != user_of(first)) {
    return nullptr;
  }
  if (!caller->closed.empty() && !caller->told) {
    close_caller(*caller, caller->closed);
  }
  return caller->closed.empty() ? caller : nullptr;
}

std::string_view TcpListener::user_of(const Frame& frame) const {
  const char* const user = services_.settings.encrypts() ? frame.property("User-Id") : nullptr;
  return user == nullptr ? "" : user;
}

TcpListener::Caller* TcpListener::admit(Frame& name, const Frame& first) {
  const std::optional<Route> route = Route::parse(name.data(), name.size());
  const std::string user(user_of(first));
  const std::string why = refusal_reason(route, user);
  if (!why.empty()) {
    ++counters_.refused;
    services_.callback_thread.report(why);
    send_refusal(std::string(name.data(), name.size()), why);
    return nullptr;
  }
  auto caller =
      std::make_unique<Caller>(Caller{*route, Assembler(services_.settings.max_message), user, {}, false, false, {}});
  Caller* const entered = caller.get();
  enter_caller(std::move(caller));
  pending_connections_.authenticated(first.source());
  on_arrival_(route->worker);
  return entered;
}

std::string TcpListener::refusal_reason(const std::optional<Route>& route, const std::string& user) const {
  if (!route) {
    return "the connecting process is not a worker of this version";
  }
  const std::string who = "worker " + std::to_string(route->worker);
  if (services_.settings.encrypts() && user != std::to_string(route->worker)) {
    return "a process that claims to be " + who + " has the key of worker " + user;
  }
  return services_.directory.admits(route->worker) ? "" : who + " has left the group";
}

void TcpListener::enter_caller(std::unique_ptr<Caller> caller) {
  std::vector<Caller*>& of_peer = by_peer_[caller->route.worker];
  if (of_peer.size() >= kMaxCallers) {
    erase(of_peer.front());
  }
  // Messages of an ended connection may be read after those of the next one.
  const auto after = std::find_if(of_peer.begin(), of_peer.end(),
                                  [&](const Caller* other) { return other->route.time > caller->route.time; });
  of_peer.insert(after, caller.get());
  const std::string name = caller->route.text;
  callers_.emplace(name, std::move(caller));
}

void TcpListener::erase(Caller* caller) {
  std::vector<Caller*>& of_peer = by_peer_[caller->route.worker];
  of_peer.erase(std::find(of_peer.begin(), of_peer.end(), caller));
  const std::string name = caller->route.text;
  callers_.erase(name);
}

void TcpListener::drop(Frame frame) {
  ++counters_.dropped;
  while (frame.more() && socket_->receive(frame)) {
  }
}

void TcpListener::close_caller(Caller& caller, const std::string& reason) {
  caller.closed = reason;
  caller.told = true;
  send_refusal(caller.route.text, reason);
}

void TcpListener::send_refusal(const std::string& route, const std::string& reason) {
  Packed refusal = Packed::refusal(reason);
  refusal.send(*socket_, route);
}

// --- on the event loop's thread ---------------------------------------------------------------------

void TcpListener::on_monitor() {
  using namespace monitor_event;
  Monitor::SocketEvent socket_event;
  bool failed = false;
  int count = 0;
  size_t ended = 0;
  for (; count < kMaxSocketEvents && monitor_->next(socket_event); ++count) {
    switch (socket_event.event) {
      case kListening:
        pending_connections_.listening(socket_event.value);
        break;
      case kAccepted:
        ended += pending_connections_.accepted(socket_event.value, kMaxPending + services_.directory.size());
        break;
      case kDisconnected:
        pending_connections_.disconnected(socket_event.value);
        break;
      case kAcceptFailed:
        failed = failed || socket_event.value == EMFILE || socket_event.value == ENFILE;
        break;
      default:
        ++counters_.handshakes;
        // A port scan is not worth a line.
        if (socket_event.event == kHandshakeFailedProtocol) {
          services_.callback_thread.report("a connection to " + socket_event.endpoint + ": " +
                                           failure_text(socket_event));
        }
        break;
    }
  }
  ended += failed ? pending_connections_.accept_failed() : 0;
  report_evicted(ended);
  if (count == kMaxSocketEvents) {
    services_.event_loop.post(monitor_task());  // its descriptor does not signal these again
  }
}

// Needs the lock.
void TcpListener::schedule_check() {
  if (!check_scheduled_) {
    check_scheduled_ = true;
    services_.event_loop.at(
        Clock::now() + std::chrono::milliseconds(milliseconds(services_.settings.heartbeat_timeout)),
        [weak = weak_from_this()] {
          if (const auto tcp_listener = std::static_pointer_cast<TcpListener>(weak.lock())) {
            tcp_listener->drop_unfinished();
          }
        });
  }
}

// libzmq does not say which connection has ended. A peer sends the pieces of a message without pause, so if none
// arrived for a full heartbeat timeout, none will.
void TcpListener::drop_unfinished() {
  Lock lock(mutex_);
  check_scheduled_ = false;
  const auto longest = std::chrono::milliseconds(milliseconds(services_.settings.heartbeat_timeout));
  std::vector<Caller*> ended;
  bool more = false;
  for (const auto& [name, caller] : callers_) {
    if (!caller->assembler.is_in_message()) {
      continue;
    }
    if (Clock::now() - caller->last_frame >= longest) {
      ended.push_back(caller.get());
    } else {
      more = true;
    }
  }
  for (Caller* const caller : ended) {
    erase(caller);
  }
  if (more) {
    schedule_check();
  }
}

EventLoop::Task TcpListener::monitor_task() {
  const std::weak_ptr<SocketSource> weak = weak_from_this();
  return [weak] {
    if (const auto tcp_listener = std::static_pointer_cast<TcpListener>(weak.lock())) {
      tcp_listener->on_monitor();
    }
  };
}

void TcpListener::report_evicted(size_t ended) {
  if (ended > 0) {
    counters_.evicted += ended;
    services_.callback_thread.report(std::to_string(ended) +
                                     " unauthenticated connections were closed: there were "
                                     "too many at a time, or too few descriptors were left (ulimit -n)");
  }
}

}  // namespace rpc_backends::zeromq
