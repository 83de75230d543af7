// The socket on which this worker listens: requests of peers arrive there, and replies go back by it.
//
// libzmq has no way to end a connection that came in, so one that is rejected is told so, which makes an
// honest peer end it; and what still comes by it is dropped.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "callback_thread.h"
#include "directory.h"
#include "event_loop.h"
#include "monitor.h"
#include "pending_connections.h"
#include "route.h"
#include "source.h"

namespace rpc_backends::zeromq {

class TcpListener : public SocketSource {
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

  // `on_arrival`: called when a peer has connected, with the lock of the tcp_listener.
  TcpListener(const Services& services, std::function<void(int peer)> on_arrival);
  ~TcpListener() override;

  void open();

  // Begins to listen, and returns where. Throws BindError.
  std::string bind(const std::string& endpoint);

  // Throws TransportError if there is no connection from `peer`.
  void reply(int peer, Packed& message);

  // Takes nothing more from the connections of `peer`; what answers earlier requests still goes there.
  void forget(int peer);

  // Takes nothing more from the connections of `peer`, and ends them if the peer does as it is told.
  void reject(int peer, const std::string& reason);

  void close(double linger);

 private:
  // A connection from a peer.
  struct Caller {
    Route route;
    Assembler assembler;
    std::string user;    // as libzmq knows it; empty without encryption
    std::string closed;  // why nothing is taken from it any more; empty if it is
    bool told = false;   // that nothing is
    bool begun = false;  // its first message, which is empty, has come; see TcpConnection
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
  bool check_scheduled_ = false;  // drop_unfinished() is planned

  // Of the event_loop's thread, once it is open.
  std::unique_ptr<Monitor> monitor_;
  int monitor_fd_ = -1;
  uint64_t watch_ = 0;
};

// Where one cannot listen, and why in the system's numbers.
class BindError : public TransportError {
 public:
  BindError(int error, const std::string& where);

  const int number;
  const std::string endpoint;
};

}  // namespace rpc_backends::zeromq
