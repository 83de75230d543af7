// Where this worker listens, and the connections from peers: their requests arrive on these, and replies return.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "acceptor.h"

namespace rpc_backends::zeromq {

class Listener final : public Acceptor::Owner, public std::enable_shared_from_this<Listener> {
 public:
  // `on_arrival`: called when a peer has connected.
  Listener(const Acceptor::Services& services, std::function<void(int peer)> on_arrival)
      : services_(services), on_arrival_(std::move(on_arrival)) {}
  ~Listener() override;

  // Starts to listen, and returns the endpoint. Throws BindError.
  std::string bind(const std::string& endpoint);

  // Sets the proof with which this worker answers an authenticated peer on a Unix socket.
  void learn(int peer, const std::string& answer);

  // Throws TransportError if there is no connection from `peer`.
  void reply(int peer, Parts parts);

  // Accepts no more requests from `peer`. Replies to its earlier requests are still sent.
  void forget(int peer);

  // Accepts no more requests from `peer`, and sends it a refusal, on which the peer closes the connection.
  void reject(int peer, const std::string& reason);

  // Ends the connections from peers whose certificates are revoked. Call it on the event loop's thread.
  void end_revoked(const Revoked& revoked);

  // Waits, at most until `deadline`, until no reply is queued.
  void wait_until_sent(Clock::time_point deadline);

  // Queued replies are sent until `deadline`. Stop the event loop first.
  void close(Clock::time_point deadline);

 private:
  // A connection from a peer.
  struct Caller {
    int worker = -1;
    uint64_t time = 0;
    std::shared_ptr<Link> link;
    std::shared_ptr<Stream> stream;
    std::vector<std::shared_ptr<Stream>> lanes;
    std::vector<Subject> subjects;  // of the certificates that were shown; none without an authority

    std::vector<std::shared_ptr<Stream>> streams() const;
    void close(Clock::time_point deadline) const;
  };

  // The file of a Unix socket.
  struct File {
    std::string path;
    dev_t device = 0;
    ino_t number = 0;
  };

  std::string answer_for(int worker) override;
  std::string refusal(const Greeting& greeting) override;
  void enter(std::unique_ptr<Channel> channel, const Greeting& greeting) override;
  Caller* find(int worker, uint64_t time);
  void add(Caller caller);
  void on_end(int worker, uint64_t time, const std::string& reason);
  void tick();
  void schedule_tick();
  void check_liveness(const Caller& caller);
  std::vector<Caller> callers() const;
  static void remove(const File& file);

  const Acceptor::Services services_;
  const std::function<void(int)> on_arrival_;
  bool is_ticking_ = false;  // the next tick is scheduled; used only on the event loop's thread

  mutable std::mutex mutex_;
  bool closed_ = false;
  std::vector<std::shared_ptr<Acceptor>> acceptors_;
  std::vector<File> files_;
  std::unordered_map<int, std::vector<Caller>> callers_;  // by peer, the newest last
  std::unordered_map<int, std::string> answers_;
};

}  // namespace rpc_backends::zeromq
