// The Unix socket on which this worker listens for workers on its host.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "directory.h"
#include "rpc_backends_agents/callback_thread.h"
#include "unix_connection.h"
#include "unix_stream.h"

namespace rpc_backends::zeromq {

class UnixListener : public std::enable_shared_from_this<UnixListener> {
 public:
  // `directory`: maps proofs to workers. `on_arrival`: called when a peer has connected.
  UnixListener(const UnixStream::Services& services, CallbackThread& callback_thread, Directory& directory,
               std::function<void(int peer)> on_arrival)
      : services_(services),
        callback_thread_(callback_thread),
        directory_(directory),
        on_arrival_(std::move(on_arrival)) {}
  ~UnixListener();

  // Starts to listen. Throws BindError.
  void bind(const std::string& path);

  // Sets the proof with which this worker answers an authenticated peer.
  void learn(int peer, const std::string& answer);

  // Returns false, and leaves `parts` unchanged, if there is no connection from `peer`.
  bool reply(int peer, Parts& parts);

  // These do the same as those of TcpListener.
  void forget(int peer);
  void reject(int peer, const std::string& reason);
  void close(double linger);

 private:
  // A connection whose greeting has not arrived completely, or is being checked.
  struct Pending {
    std::unique_ptr<Fd> fd;
    Clock::time_point since;
    uint64_t watch = 0;
    std::string greeting;
  };

  // A connection from a peer.
  struct Caller {
    int worker;
    uint64_t time;
    std::shared_ptr<UnixStream> stream;
  };

  void watch();
  void accept_all();
  void expire();
  void on_greeting(uint64_t id);
  void identify(uint64_t id, const Greeting& greeting);
  void admit(uint64_t id, const Greeting& greeting, int worker);
  void enter(std::unique_ptr<Fd> fd, const Greeting& greeting);
  void refuse(uint64_t id, const std::string& why);
  void drop(uint64_t id);
  void on_end(int worker, uint64_t time, const std::string& reason);
  void tick();
  void remove_file();

  const UnixStream::Services services_;
  CallbackThread& callback_thread_;
  Directory& directory_;
  const std::function<void(int)> on_arrival_;

  std::unique_ptr<Fd> socket_;
  std::string path_;
  dev_t device_ = 0;
  ino_t number_ = 0;
  bool ticking_ = false;

  // Used only on the event loop's thread.
  uint64_t watch_ = 0;
  std::map<uint64_t, Pending> pending_;  // the oldest first
  uint64_t next_id_ = 1;
  bool expiring_ = false;

  std::mutex mutex_;
  bool closed_ = false;
  std::unordered_map<int, std::vector<Caller>> callers_;  // by peer, the newest last
  std::unordered_map<int, std::string> answers_;
};

}  // namespace rpc_backends::zeromq
