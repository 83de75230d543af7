// An authenticated connection, which carries messages in both directions. Threads that send write to the socket
// themselves, and threads that wait for events read from it. Only if the socket's buffer is full does the writer thread
// continue.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "channel.h"
#include "event_loop.h"
#include "inbox.h"
#include "link.h"
#include "message_reader.h"
#include "outgoing.h"
#include "rpc_backends_agents/releaser.h"
#include "settings.h"
#include "tls.h"

namespace rpc_backends::zeromq {

class Stream : public Source, public std::enable_shared_from_this<Stream> {
 public:
  struct Services {
    const Settings& settings;
    Inbox& inbox;
    EventLoop& event_loop;
    EventLoop& writer;  // continues writing when a socket has room again
    const Releaser& releaser;
    Counters& counters;
    const TlsContext* tls = nullptr;  // null without encryption
  };

  // `on_end`: called once, on any thread, with the reason when no more data will arrive; "" if the other side
  // closed the connection. `link`: null if the connection is alone; then large messages are not cut. `is_lane`:
  // whether it carries pieces only.
  Stream(const Services& services, int peer, std::unique_ptr<Channel> channel,
         std::function<void(const std::string&)> on_end, std::shared_ptr<Link> link = nullptr, bool is_lane = false);
  ~Stream() override;

  // Starts to read, and to write queued messages.
  void start();

  // Returns false if the connection has ended. Throws TransportError if the message is too large.
  bool send(Parts parts);

  // Sends a refusal to the other side and drops further data.
  void refuse(const std::string& reason);
  // Refuses the next message from the other side for this reason, and continues to send.
  void forget(const std::string& reason);

  // Writes what the socket takes.
  void flush();

  // Waits, at most until `deadline`, until no message is queued, or none will be sent.
  void wait_until_sent(Clock::time_point deadline);
  // The stream will never start.
  void abandon();

  // Sends a ping if the peer has been silent for half of settings.heartbeat. Returns how long it has been silent:
  // nothing has arrived from it, and it has read nothing of a message. Call it on the event loop's thread.
  Clock::duration check_liveness();

  // Sends queued messages until `deadline`, and waits until the host of the other side has them. The other side reads
  // everything that has arrived when the first connection of a link ends, so all are drained before one is closed.
  void drain(Clock::time_point deadline);

  // Reads what has arrived, and closes. Queued messages are sent until `deadline`.
  void close(Clock::time_point deadline);

  int fd() const { return channel_->fd(); }

  void pump() override;

 private:
  enum class Written { kNothing, kSome, kAll, kFailed };
  using Lock = std::unique_lock<std::mutex>;

  uint64_t check(Parts& parts) const;
  bool post(Outgoing message);
  bool post_control(Outgoing message);
  bool may_take() const;
  bool has_more();
  void write_queue(Lock& lock, size_t most, std::deque<Outgoing>& sent);
  Written write_next(Lock& lock);
  Written write(Outgoing& message);
  void read_batch();
  void read_some();
  void read_rest();
  bool handle(MessageReader::Outcome outcome);
  bool is_unread();
  bool has_been_read();
  bool is_backed_up(int in_socket);
  void report_end(const std::string& reason);
  void write_rest(Lock& lock, Clock::time_point deadline, std::deque<Outgoing>& sent);
  void wait_until_arrived(Clock::time_point deadline) const;

  const Services services_;
  const int peer_;
  const std::unique_ptr<Channel> channel_;
  const std::shared_ptr<Link> link_;
  const bool is_lane_;
  std::function<void(const std::string&)> on_end_;
  std::once_flag told_;

  std::mutex reading_;
  MessageReader reader_;
  std::atomic<bool> ignoring_{false};
  std::atomic<bool> forgotten_{false};
  std::string farewell_;  // why messages are refused; written once, before forgotten_
  bool read_to_end_ = false;
  uint64_t source_ = 0;  // 0 while nothing is read
  // Whether the socket wakes the reader only for many bytes. On a long link, the window would grow more slowly: at 80
  // ms and 1 Gbit/s, 64 MiB would take a quarter longer.
  bool expects_ = false;

  std::mutex writing_;
  std::condition_variable written_;
  std::deque<Outgoing> queue_;
  bool busy_ = false;   // a thread is writing the head of the queue, without the lock
  bool again_ = false;  // the socket has become writable meanwhile
  bool started_ = false;
  bool abandoned_ = false;
  bool closed_ = false;
  uint64_t watch_ = 0;
  std::atomic<bool> timed_out_{false};  // the system has ended the connection, as for kNoHeartbeat

  std::atomic<Clock::time_point> last_activity_;
  std::atomic<uint64_t> bytes_written_{0};  // of messages
  // As of the last check_liveness(), which alone uses them.
  uint64_t checked_written_ = 0;
  int64_t checked_in_socket_ = 0;
  bool was_backed_up_ = false;
  Clock::time_point last_ping_;
};

}  // namespace rpc_backends::zeromq
