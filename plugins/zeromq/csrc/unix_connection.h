// A connection to a peer on this host over its Unix socket. It is not encrypted: both ends are this user's.
//
//   the connecting side sends   a greeting: its id and its proof
//   the listening side answers  with its own proof, or with a refusal
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "connection.h"
#include "route.h"
#include "unix_stream.h"

namespace rpc_backends::zeromq {

// Exchanged over a Unix socket before any message.
struct Greeting {
  char form[8];
  int32_t worker;
  uint32_t unused;
  uint64_t time;  // as in Route
  char proof[kProofSize];
};
static_assert(sizeof(Greeting) == 56);

struct Answer {
  char form[8];
  uint32_t is_admitted;
  uint32_t text_size;  // bytes of the refusal's reason, which follows
  char proof[kProofSize];
};
static_assert(sizeof(Answer) == 48);

inline constexpr char kUnixForm[8] = {'R', 'P', 'C', 'U', 'N', 'I', 'X', 1};

// Creates a Unix socket. Throws TransportError.
std::unique_ptr<Fd> open_unix_socket();

// Describes the process at the other end if it belongs to another user; "" if it belongs to this user.
std::string other_user(int fd);

class UnixConnection final : public Connection, public std::enable_shared_from_this<UnixConnection> {
 public:
  UnixConnection(const UnixStream::Services& services, Listener& listener, int peer, const Endpoint& endpoint)
      : Connection(listener, peer, endpoint), services_(services) {}
  ~UnixConnection() override;

  // Starts to connect. Throws TransportError if no socket can be made.
  void open(const Credentials& credentials, const Route& route);

  bool send(Parts parts) override;
  void wait_until_open(Clock::time_point deadline) override;
  void close(double linger) override;
  void end(const std::string& reason) override;

 private:
  void connect();
  void greet();
  void on_answer();
  void on_tick();
  void later(double seconds, void (UnixConnection::*task)());
  void report_end(const std::string& reason);
  void unwatch();
  std::string why_it_ended(const std::string& reason) const;

  const UnixStream::Services services_;
  std::shared_ptr<UnixStream> stream_;
  std::string expected_;  // the answer that the peer must give
  Greeting greeting_{};

  // Used only on the event loop's thread once the connection is open.
  Clock::time_point opened_;
  std::string answer_;

  std::atomic<uint64_t> watch_{0};
  std::atomic<bool> closed_{false};
};

}  // namespace rpc_backends::zeromq
