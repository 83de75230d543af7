// A connection to a peer. It carries this worker's requests and the peer's replies.
//
// It connects once, and sends queued messages as soon as it is connected. A message that was reported as lost is
// therefore never delivered later. To try again, make another connection.
//
// The first large message makes it open lanes, which are connections of their own, one after the other, so that each
// peer has at most one handshake at a time. A lane that cannot be opened is done without. When a lane ends that was up,
// the whole connection ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "endpoint.h"
#include "greeting.h"
#include "stream.h"

namespace rpc_backends::zeromq {

class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  // Receives the connection's events, on the event loop's thread.
  struct Owner {
    virtual ~Owner() = default;
    virtual void on_up(const std::shared_ptr<Connection>& connection) = 0;
    // No more data arrives on the connection.
    virtual void on_end(const std::shared_ptr<Connection>& connection, const std::string& reason) = 0;
  };

  // A lane of `first`, which must be open.
  struct Lane {
    uint32_t number;
    std::weak_ptr<Connection> first;
  };

  Connection(const Stream::Services& services, Owner& owner, int peer, Endpoint endpoint, Lane lane = {0, {}})
      : services_(services), owner_(owner), peer_(peer), endpoint_(std::move(endpoint)), lane_(std::move(lane)) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  // Starts to connect, as worker `self`. Throws TransportError if no socket can be made.
  void open(const Credentials& credentials, int self);

  // Returns false if the connection has ended. Throws TransportError if the message is too large.
  bool send(Parts parts);

  // Waits, at most until `deadline`, until no message is queued, or none will be sent.
  void wait_until_sent(Clock::time_point deadline);

  // Reads what has arrived, and closes. Queued messages are sent until `deadline`.
  void close(Clock::time_point deadline);

  // Ends the connection because of data that arrived on it, and notifies the owner.
  void end(const std::string& reason);

  // Whether the peer has shown a certificate that is revoked. Call it on the event loop's thread.
  bool uses(const Revoked& revoked);

  int peer() const { return peer_; }
  const Endpoint& endpoint() const { return endpoint_; }

  // These are for the event loop's thread.
  Clock::time_point up_since() const { return up_since_; }
  bool is_connected() const { return connected_; }

 private:
  std::unique_ptr<Channel> make_channel(const Credentials& credentials);
  void connect();
  void on_connecting();
  void on_connected();
  void shake_hands();
  void greet();
  void on_answer();
  void on_up();
  void on_large();
  void open_next_lane();
  void on_lane_end(const std::shared_ptr<Connection>& lane, const std::string& reason);
  std::vector<std::shared_ptr<Connection>> lanes();
  void on_late_connect();
  void on_late_handshake();
  void on_tick();
  void on_stream_end(const std::string& reason);
  void find_out_why();
  void on_probe(const std::shared_ptr<Fd>& probe, bool done);
  void run(void (Connection::*task)());
  void later(double seconds, void (Connection::*task)());
  void watch(uint32_t events, void (Connection::*task)());
  void unwatch();
  void report_end(const std::string& reason);
  void pass_end(const std::string& reason);
  void pass_end_after_probe(int error);
  void report_silence();
  void report_failure(const std::string& why);
  std::string why_it_did_not_connect(int error) const;
  std::string why_it_ended(int error) const;

  const Stream::Services services_;
  Owner& owner_;
  const int peer_;
  const Endpoint endpoint_;
  const Lane lane_;
  Credentials credentials_;
  std::shared_ptr<Link> link_;
  std::shared_ptr<Stream> stream_;
  Channel* channel_ = nullptr;  // of `stream_`
  TlsChannel* tls_ = nullptr;   // the same, if it encrypts
  std::string expected_;        // the answer that the peer must give
  Greeting greeting_{};

  // Used only on the event loop's thread once the connection is open.
  Clock::time_point opened_;
  Clock::time_point up_since_;
  bool connected_ = false;
  bool ended_ = false;
  std::string answer_;
  uint64_t probe_ = 0;  // the watch of a running probe, or 0
  bool wants_lanes_ = false;
  double round_trip_ = 0;  // seconds, measured before there are messages

  std::mutex lanes_mutex_;
  std::vector<std::shared_ptr<Connection>> lanes_;

  std::atomic<uint64_t> watch_{0};
  std::atomic<bool> closed_{false};
};

}  // namespace rpc_backends::zeromq
