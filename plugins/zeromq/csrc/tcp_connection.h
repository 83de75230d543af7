// A TCP connection to a peer, through libzmq.
#pragma once

#include <memory>
#include <string>

#include "connection.h"
#include "event_loop.h"
#include "monitor.h"
#include "route.h"
#include "rpc_backends_agents/releaser.h"
#include "source.h"

namespace rpc_backends::zeromq {

class TcpConnection final : public SocketSource, public Connection {
 public:
  struct Services {
    const Settings& settings;
    Context& context;
    Inbox& inbox;
    EventLoop& event_loop;
    const Releaser& releaser;
    Counters& counters;
  };

  TcpConnection(const Services& services, Listener& listener, int peer, const Endpoint& endpoint);
  ~TcpConnection() override;

  // Starts to connect. Throws TransportError if no socket can be made.
  void open(const std::string& key, const Route& route);

  bool send(Parts parts) override;
  void close(double linger) override;
  void end(const std::string& reason) override;

 private:
  Read read_one() override;
  void set_options(Socket& socket, const std::string& key, const Route& route) const;
  void on_monitor();
  void on_deadline();
  void find_out_why();
  void on_probe(const std::shared_ptr<Fd>& probe, bool done);
  bool needs_probe() const;
  bool is_late() const;
  std::string why_it_ended(int error) const;
  std::string why_it_did_not_connect(int error) const;
  std::shared_ptr<TcpConnection> self();

  const Settings& settings_;
  Context& context_;
  EventLoop& event_loop_;
  const Releaser& releaser_;
  Assembler assembler_;
  bool broken_ = false;  // whether further data is dropped
  std::atomic<Clock::time_point> last_message_{Clock::time_point()};

  // Used only on the event loop's thread once the connection is open.
  std::unique_ptr<Monitor> monitor_;
  int monitor_fd_ = -1;
  uint64_t watch_ = 0;
  Clock::time_point opened_;
  bool connected_ = false;
  std::string trouble_;  // what went wrong in the handshake
  uint64_t probe_ = 0;   // the watch of a running probe, or 0
};

}  // namespace rpc_backends::zeromq
