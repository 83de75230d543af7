// Accepts connections on one socket, and finds out which worker connects. Nothing is read from a connection before that
// except its greeting and, with encryption, the handshake of TLS.
//
// Any process may connect, so the connections that have not proved yet who they are are few: beyond a limit the oldest
// ones are closed, because an honest peer needs only moments. They leave file descriptors to the program.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "directory.h"
#include "greeting.h"
#include "rpc_backends_agents/callback_thread.h"
#include "stream.h"

namespace rpc_backends::zeromq {

// Used only on the event loop's thread, except the constructor.
class Acceptor : public std::enable_shared_from_this<Acceptor> {
 public:
  struct Services {
    Stream::Services of_streams;
    CallbackThread& callback_thread;
    Directory& keys;    // maps the keys of workers to workers
    Directory& proofs;  // the same for their proofs
  };

  // Gets the connections of workers.
  struct Owner {
    virtual ~Owner() = default;
    // Returns the proof with which this worker answers a worker.
    virtual std::string answer_for(int worker) = 0;
    // Returns why the connection of a worker cannot be taken; "" if it can.
    virtual std::string refusal(const Greeting& greeting) = 0;
    virtual void enter(std::unique_ptr<Channel> channel, const Greeting& greeting) = 0;
  };

  // `socket`: listens, and does not block.
  Acceptor(const Services& services, std::weak_ptr<Owner> owner, std::unique_ptr<Fd> socket, std::string endpoint);

  void start();
  // Ends all connections that are not authenticated yet. Call it after the end of the event loop, on any thread.
  void stop();

  // Descriptors that connections that are not authenticated leave to the process.
  static constexpr int kSpare = 32;

 private:
  struct Pending {
    std::unique_ptr<Channel> channel;
    TlsChannel* tls = nullptr;  // the channel, if it encrypts
    std::string address;        // for the log
    Clock::time_point since;
    uint64_t watch = 0;
    uint32_t events = 0;
    bool is_secure = false;  // the handshake of TLS has ended, or there is none
    std::string greeting;
  };

  void watch_socket();
  void resume();
  void accept_all();
  void try_to_add(int fd);
  void add(std::unique_ptr<Fd> fd);
  size_t allowed(int newest) const;
  size_t keep(size_t number);
  size_t make_room();
  void turn_away();
  void pause();
  void report_evicted(size_t ended);
  void expire();
  void watch(uint64_t id, uint32_t events);
  void go_on(uint64_t id);
  bool shake_hands(uint64_t id);
  bool read_greeting(uint64_t id);
  void identify(uint64_t id, const Greeting& greeting);
  void look_up(uint64_t id, const Greeting& greeting, Directory& directory, const std::string& key);
  void admit(uint64_t id, const Greeting& greeting, int worker);
  void refuse_unknown(uint64_t id, const char* why);
  void refuse(uint64_t id, const std::string& why);
  void refuse(uint64_t id, const std::string& to_peer, const std::string& to_log);
  void fail(uint64_t id, const std::string& why);
  void drop(uint64_t id);

  const Services services_;
  const Settings& settings_;
  EventLoop& event_loop_;
  const std::weak_ptr<Owner> owner_;
  const std::unique_ptr<Fd> socket_;
  const std::string endpoint_;
  const bool is_unix_;
  uint64_t watch_ = 0;
  std::map<uint64_t, Pending> pending_;  // the oldest first
  uint64_t next_id_ = 1;
  bool expiring_ = false;  // expire() is scheduled
  // Closed for a moment, so that a connection can be accepted and closed when there is no other descriptor.
  std::optional<Fd> spare_;
};

}  // namespace rpc_backends::zeromq
