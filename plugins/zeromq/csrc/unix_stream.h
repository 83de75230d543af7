// A connection over a Unix socket, once each side knows who the other is: messages go in by one and come out by
// the other. The threads that send write, and those that wait for events read; nothing is handed on, except
// that another thread goes on where the socket takes no more for now.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fd.h"
#include "inbox.h"
#include "event_loop.h"
#include "message_reader.h"
#include "releaser.h"
#include "settings.h"

namespace rpc_backends::zeromq {

class UnixStream : public Source, public std::enable_shared_from_this<UnixStream> {
 public:
  struct Services {
    const Settings& settings;
    Inbox& inbox;
    EventLoop& event_loop;
    EventLoop& writer;  // goes on where a socket took no more
    const Releaser& releaser;
    Counters& counters;
  };

  // `on_end`: called once, on any thread, when nothing comes by it any more, with the reason; "" if the other
  // side has ended it.
  UnixStream(const Services& services, int peer, std::unique_ptr<Fd> fd,
             std::function<void(const std::string&)> on_end);
  ~UnixStream() override;

  // Begins to read, and to write what was sent before.
  void start();

  // Returns false if it has ended. Throws TransportError if there is too much of the message.
  bool send(Parts parts);

  // Tells the other side that nothing more is taken from it, and takes nothing more.
  void refuse(const std::string& reason);
  // Takes nothing more, and goes on sending.
  void ignore();

  // Asks for a sign of life if there was none for settings.heartbeat, and returns for how long there was none.
  Clock::duration check_liveness();

  // Reads what has arrived, and closes. What was sent has until `deadline` to leave.
  void close(Clock::time_point deadline);

  int fd() const { return fd_->get(); }

  void pump() override;

 private:
  // A message on its way out: its header and sizes, then its parts.
  struct Outgoing {
    std::vector<char> head;
    Parts parts;
    size_t at = 0;      // 0 is the head, then come the parts
    size_t offset = 0;  // in that
  };

  enum class Written { kAll, kSome, kFailed };
  using Lock = std::unique_lock<std::mutex>;

  Outgoing pack(Parts parts) const;
  bool post(Outgoing message);
  bool post_control(Outgoing message);
  void flush();
  void write_queue(Lock& lock, size_t most, std::deque<Outgoing>& sent);
  Written write(Outgoing& message);
  bool handle(MessageReader::Outcome outcome);
  void report_end(const std::string& reason);

  const Services services_;
  const int peer_;
  const std::unique_ptr<Fd> fd_;
  std::function<void(const std::string&)> on_end_;
  std::once_flag told_;

  std::mutex reading_;
  MessageReader reader_;
  std::atomic<bool> ignoring_{false};
  bool read_to_end_ = false;
  uint64_t source_ = 0;  // 0 if nothing is read

  std::mutex writing_;
  std::condition_variable written_;
  std::deque<Outgoing> queue_;
  bool busy_ = false;   // a thread writes the first of the queue, without the lock
  bool again_ = false;  // the socket took more meanwhile
  bool started_ = false;
  bool closed_ = false;
  uint64_t watch_ = 0;

  std::atomic<Clock::time_point> last_activity_;
  std::atomic<Clock::time_point> last_ping_{Clock::time_point()};
};

}  // namespace rpc_backends::zeromq
