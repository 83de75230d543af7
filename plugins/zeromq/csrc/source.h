// A socket that receives messages, which several threads read and others write.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "assembler.h"
#include "inbox.h"
#include "packed.h"
#include "settings.h"
#include "socket.h"

namespace rpc_backends::zeromq {

class SocketSource : public Source, public std::enable_shared_from_this<SocketSource> {
 public:
  explicit SocketSource(Inbox& inbox, Counters& counters) : inbox_(inbox), counters_(counters) {}

  void pump() override;

 protected:
  using Lock = std::unique_lock<std::mutex>;

  // What was read: nothing, because the socket is empty; a message that is already handled; or a piece of a message
  // from `peer`, which is copied to its place without the lock.
  struct Read {
    enum class Kind { kEmpty, kDone, kPiece };
    Kind kind = Kind::kEmpty;
    int peer = -1;
    std::optional<Piece> piece;
  };

  // Reads one ZeroMQ message, and pushes the messages that it completes. Needs the lock.
  virtual Read read_one() = 0;

  // Adds a socket, which has no messages yet, to the inbox. Needs the lock.
  void enter(Socket socket);

  // Removes the socket from the inbox and returns it, to be closed. Needs the lock.
  std::optional<Socket> leave();

  // Reads what has arrived, and releases the lock.
  void drain(Lock lock);

  // Waits until all messages whose last piece was read are in the inbox. Needs the lock.
  void finish_pieces(Lock& lock);

  // Must follow every other use of the socket: libzmq may have noticed new messages and signals that only once.
  // Checking costs more than sending, so it is deferred where possible.
  void settle(Lock lock);

  void push(int peer, Parts parts);

  std::mutex mutex_;
  std::optional<Socket> socket_;
  Inbox& inbox_;
  Counters& counters_;

 private:
  uint64_t id_ = 0;
  int fd_ = -1;
  int putting_ = 0;  // pieces being copied to their places, without the lock
  std::condition_variable put_;
};

}  // namespace rpc_backends::zeromq
