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

#include "asker.h"
#include "directory.h"
#include "keeper.h"
#include "monitor.h"
#include "newcomers.h"
#include "route.h"
#include "source.h"

namespace rpc_backends::zeromq {

class Door : public SocketSource {
 public:
  struct Services {
    const Settings& settings;
    Context& context;
    Inbox& inbox;
    Keeper& keeper;
    Counters& counters;
    Asker& asker;
    Directory& directory;
  };

  // `on_arrival`: called when a peer has connected, with the lock of the door.
  Door(const Services& services, std::function<void(int peer)> on_arrival);
  ~Door() override;

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
    bool begun = false;  // its first message, which is empty, has come; see Link
    Clock::time_point last_frame;
  };

  Read read_one() override;
  Caller* find(Frame& name, const Frame& first);
  Caller* admit(Frame& name, const Frame& first);
  std::string_view user_of(const Frame& frame) const;
  std::string why_not(const std::optional<Route>& route, const std::string& user) const;
  void enter_caller(std::unique_ptr<Caller> caller);
  void erase(Caller* caller);
  void drop(Frame frame);
  void close_caller(Caller& caller, const std::string& reason);
  void tell(const std::string& route, const std::string& reason);
  void on_monitor();
  void crowd_out(size_t ended);
  void plan_look();
  void drop_unfinished();
  Keeper::Task monitor_task();

  const Services services_;
  const std::function<void(int)> on_arrival_;
  std::unordered_map<std::string, std::unique_ptr<Caller>> callers_;
  std::unordered_map<int, std::vector<Caller*>> by_peer_;  // the newest last
  Newcomers newcomers_;
  bool looking_ = false;  // drop_unfinished() is planned

  // Of the keeper's thread, once it is open.
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
