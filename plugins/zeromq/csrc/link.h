// A connection to a peer: our requests leave by it, and their answers come by it.
//
// It connects once, and what is queued on it goes when it does. So a message that was reported as lost is
// never delivered later; whoever wants to try again makes another link.
#pragma once

#include <memory>
#include <string>

#include "endpoint.h"
#include "keeper.h"
#include "monitor.h"
#include "route.h"
#include "source.h"

namespace rpc_backends::zeromq {

class Link : public SocketSource {
 public:
  // What a link is told to tell; on the keeper's thread.
  struct Listener {
    virtual ~Listener() = default;
    virtual void on_up(const std::shared_ptr<Link>& link) = 0;
    // Nothing comes by the link any more.
    virtual void on_end(const std::shared_ptr<Link>& link, const std::string& reason) = 0;
  };

  struct Services {
    const Settings& settings;
    Context& context;
    Inbox& inbox;
    Keeper& keeper;
    Counters& counters;
  };

  Link(const Services& services, Listener& listener, int peer);
  ~Link() override;

  // Begins to connect. Throws TransportError if the system has no room for it.
  void open(const Endpoint& endpoint, const std::string& key, const Route& route);

  // Returns false if the link has ended.
  bool send(Packed& message);

  // Reads what has arrived, and closes. What was sent has `linger` seconds to leave.
  void close(double linger = 0);

  // Ends it for what came by it; the listener is told.
  void end(const std::string& reason);

  int peer() const { return peer_; }
  const Endpoint& endpoint() const { return endpoint_; }

  // When a message came by it last; never if it is the clock's beginning.
  Clock::time_point last_message() const { return last_message_; }
  Clock::time_point up_since() const { return up_since_; }

 private:
  Read read_one() override;
  void set_options(Socket& socket, const std::string& key, const Route& route) const;
  void on_monitor();
  void on_deadline();
  void find_out_why();
  void on_trial(const std::shared_ptr<Fd>& trial, bool done);
  bool needs_trial() const;
  bool is_late() const;
  std::string why_it_ended(int error) const;
  std::string why_it_did_not_connect(int error) const;
  std::shared_ptr<Link> self();

  const Settings& settings_;
  Context& context_;
  Keeper& keeper_;
  Listener& listener_;
  const int peer_;
  Endpoint endpoint_;
  Assembler assembler_;
  bool broken_ = false;  // what comes now is dropped
  std::atomic<Clock::time_point> last_message_{Clock::time_point()};

  // Of the keeper's thread, once it is open.
  std::unique_ptr<Monitor> monitor_;
  int monitor_fd_ = -1;
  uint64_t watch_ = 0;
  Clock::time_point opened_;
  Clock::time_point up_since_;
  bool connected_ = false;
  bool ended_ = false;
  std::string trouble_;  // in the handshake
  uint64_t trial_ = 0;   // the watch of one that is under way
};

}  // namespace rpc_backends::zeromq
