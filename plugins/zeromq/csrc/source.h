// A socket from which messages come: how it is read by several threads, and written to by others.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "inbox.h"
#include "settings.h"
#include "socket.h"
#include "assembler.h"
#include "packed.h"

namespace rpc_backends::zeromq {

class SocketSource : public Source, public std::enable_shared_from_this<SocketSource> {
 public:
  explicit SocketSource(Inbox& inbox, Counters& counters) : inbox_(inbox), counters_(counters) {}

  void pump() override;

 protected:
  using Lock = std::unique_lock<std::mutex>;

  // What was read: nothing, because there is nothing; something, that has been dealt with; or a piece
  // of a message from `peer`, which is put in its place without the lock.
  struct Read {
    enum class Kind { kEmpty, kDone, kPiece };
    Kind kind = Kind::kEmpty;
    int peer = -1;
    std::optional<Piece> piece;
  };

  // Reads one ZeroMQ message, and pushes what it completes. With the lock.
  virtual Read read_one() = 0;

  // Has receive() called for this socket, which has no messages yet. With the lock.
  void enter(Socket socket);

  // Takes the socket out and returns it, to be closed. With the lock.
  std::optional<Socket> leave();

  // Reads what has arrived, and gives up the lock.
  void drain(Lock lock);

  // Waits until all messages whose last piece has been read are in the inbox. With the lock.
  void finish_pieces(Lock& lock);

  // Has to follow whatever else is done with the socket: libzmq may have taken note of messages that
  // arrived, and does so only once. Looking costs more than sending, so it is done later where it can be.
  void settle(Lock lock);

  void push(int peer, Parts parts);

  std::mutex mutex_;
  std::optional<Socket> socket_;
  Inbox& inbox_;
  Counters& counters_;

 private:
  uint64_t id_ = 0;
  int putting_ = 0;  // pieces that are being put in their places, without the lock
  std::condition_variable put_;
};

}  // namespace rpc_backends::zeromq
