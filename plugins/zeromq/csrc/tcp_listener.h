// The ROUTER socket on which this worker listens. Requests of peers arrive there, and replies return through it.
//
// libzmq cannot close a single incoming connection. A rejected peer is therefore sent a refusal, on which an honest
// peer closes the connection. Data that still arrives on the connection is dropped.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "directory.h"
#include "event_loop.h"
#include "monitor.h"
#include "pending_connections.h"
#include "route.h"
#include "rpc_backends_agents/callback_thread.h"
#include "source.h"

namespace rpc_backends::zeromq {

class TcpListener final : public SocketSource {
 public:
  struct Services {
    const Settings& settings;
    Context& context;
    Inbox& inbox;
    EventLoop& event_loop;
    Counters& counters;
    CallbackThread& callback_thread;
    Directory& directory;
  };

  // `on_arrival`: called with this listener's lock when a peer has connected.
  TcpListener(const Services& services, std::function<void(int peer)> on_arrival);
  ~TcpListener() override;

  void open();

  // Starts to listen, and returns the endpoint. Throws BindError.
  std::string bind(const std::string& endpoint);

  // Throws TransportError if there is no connection from `peer`.
  void reply(int peer, Packed& message);

  // Accepts no more requests from `peer`. Replies to its earlier requests are still sent.
  void forget(int peer);

  // Accepts no more requests from `peer`, and sends it a refusal, on which the peer closes the connection.
  void reject(int peer, const std::string& reason);

  void close(double linger);

 private:
  // A connection from a peer.
  struct Caller {
    Route route;
    Assembler assembler;
    std::string user;    // the user id that libzmq has for the peer; empty without encryption
    std::string closed;  // why nothing more is accepted from it; empty while it is open
    bool told = false;   // whether the refusal was sent
    bool begun = false;  // whether its first message, which is empty, has arrived; see TcpConnection
    Clock::time_point last_frame;
  };

  Read read_one() override;
  Caller* find(Frame& name, const Frame& first);
  Caller* admit(Frame& name, const Frame& first);
  std::string_view user_of(const Frame& frame) const;
  std::string refusal_reason(const std::optional<Route>& route, const std::string& user) const;
  void enter_caller(std::unique_ptr<Caller> caller);
  void erase(Caller* caller);
  void drop(Frame frame);
  void close_caller(Caller& caller, const std::string& reason);
  void send_refusal(const std::string& route, const std::string& reason);
  void on_monitor();
  void report_evicted(size_t ended);
  void schedule_check();
  void drop_unfinished();
  EventLoop::Task monitor_task();

  const Services services_;
  const std::function<void(int)> on_arrival_;
  std::unordered_map<std::string, std::unique_ptr<Caller>> callers_;
  std::unordered_map<int, std::vector<Caller*>> by_peer_;  // the newest last
  PendingConnections pending_connections_;
  bool check_scheduled_ = false;  // whether drop_unfinished() is scheduled

  // Used only on the event loop's thread once the listener is open.
  std::unique_ptr<Monitor> monitor_;
  int monitor_fd_ = -1;
  uint64_t watch_ = 0;
};

// Listening failed, with the endpoint and the errno.
class BindError : public TransportError {
 public:
  BindError(int error, const std::string& where);

  const int number;
  const std::string endpoint;
};

}  // namespace rpc_backends::zeromq
