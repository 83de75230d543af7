#include "stream.h"

#include <linux/pkt_sched.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "endpoint.h"
#include "rpc_backends_agents/blocks.h"

namespace rpc_backends::zeromq {

using namespace wire;

namespace {

// Messages and bytes that one thread reads or writes in one go. More would delay other sockets, and fill memory faster
// than threads empty it.
constexpr int kBatch = 32;
constexpr size_t kBatchBytes = 1 << 22;
// Buffers that one call writes.
constexpr size_t kMaxPlaces = 64;
// Bytes of a piece of a large message. On the first connection of a link, small messages wait for one.
constexpr size_t kPiece = size_t{512} << 10;
constexpr size_t kPieceOnFirst = size_t{64} << 10;

// Bytes that channel and reader hold at most: what TLS has read (96 KiB) or opened (16 KiB), and the reader's buffer
// (16 KiB).
constexpr uint64_t kMostHeld = 128 << 10;

// Returns a message with its header and the sizes of its parts.
Outgoing pack(Parts parts) {
  Outgoing message{head_of(Kind::kMessage, parts.size(), parts.size() * sizeof(uint64_t)), std::move(parts)};
  char* field = message.head.data() + sizeof(Header);
  for (const Part& part : message.parts) {
    const uint64_t size = part.size;
    std::memcpy(field, &size, sizeof size);
    field += sizeof size;
  }
  return message;
}

// Lets threads that wait for a processor run, between batches of bytes. If all processors copy large messages, such a
// thread waits 3 ms or more, and it may be one that has the GIL or a small message.
void yield_after_batch(uint64_t before, uint64_t after) {
  if (before / kBatchBytes != after / kBatchBytes) {
    ::sched_yield();
  }
}

Clock::duration duration_of(double seconds) {
  return std::chrono::milliseconds(milliseconds(seconds));
}

}  // namespace

Stream::Stream(const Services& services, int peer, std::unique_ptr<Channel> channel,
               std::function<void(const std::string&)> on_end, std::shared_ptr<Link> link, bool is_lane)
    : services_(services),
      peer_(peer),
      channel_(std::move(channel)),
      link_(std::move(link)),
      is_lane_(is_lane),
      on_end_(std::move(on_end)),
      reader_(services.settings.max_message,
              link_ ? [of = link_.get()]() -> Assembly& { return of->assembly(); } : std::function<Assembly&()>()),
      last_activity_(Clock::now()) {}

Stream::~Stream() {
  try {
    close(Clock::now());
  } catch (const std::bad_alloc&) {  // the socket is closed anyway
  }
}

void Stream::start() {
  last_activity_ = Clock::now();
  expects_ = !is_unix_socket(fd()) && round_trip(fd()) < services_.settings.long_link;
  if (!is_lane_) {
    // In the queue of the network device, whose classes pfifo_fast serves in strict order. Lanes keep the class that
    // all other programs use: in a lower one they would starve beside any of them.
    const int priority = TC_PRIO_INTERACTIVE;
    ::setsockopt(fd(), SOL_SOCKET, SO_PRIORITY, &priority, sizeof priority);
  }
  {
    std::lock_guard<std::mutex> lock(writing_);
    if (closed_) {
      return;
    }
    started_ = true;
    written_.notify_all();
    watch_ = services_.writer.watch(
        fd(),
        [weak = weak_from_this()] {
          if (const auto stream = weak.lock()) {
            stream->flush();
          }
        },
        EPOLLOUT | EPOLLET);
  }
  std::lock_guard<std::mutex> lock(reading_);
  source_ = services_.inbox.add(fd(), weak_from_this());
  services_.inbox.again(source_);  // the channel may hold data already, of which the socket knows nothing
}

// --- writing ----------------------------------------------------------------------------------------

bool Stream::send(Parts parts) {
  if (check(parts) >= kLarge && link_) {
    services_.releaser.hold(parts);
    return link_->send(std::move(parts));
  }
  return post(pack(std::move(parts)));
}

// Returns the bytes of a message that may be sent, and copies parts that nothing keeps alive.
uint64_t Stream::check(Parts& parts) const {
  if (parts.size() > kMaxParts) {
    throw TransportError("a message of " + std::to_string(parts.size()) + " parts cannot be sent; " +
                         std::to_string(kMaxParts) + " is the limit");
  }
  uint64_t bytes = 0;
  for (Part& part : parts) {
    bytes += part.size;
    if (!part.owner && part.size > 0) {
      const Part copied = take_block(part.size);
      std::memcpy(const_cast<void*>(copied.data), part.data, part.size);
      part = copied;
    }
  }
  if (bytes > services_.settings.max_message) {
    throw TransportError("a message of " + std::to_string(bytes) + " bytes is larger than the " +
                         std::to_string(services_.settings.max_message) + " that a message may have");
  }
  return bytes;
}

// Whether this connection carries the pieces of large messages now.
bool Stream::may_take() const {
  return link_ && (is_lane_ || !link_->has_lanes());
}

// Whether there is something to write. Needs the lock for writing.
bool Stream::has_more() {
  if (queue_.empty() && may_take() && !link_->is_empty()) {
    std::deque<Outgoing> piece(1);  // so that no piece is lost for want of memory once it is taken
    if (link_->take(is_lane_ ? kPiece : kPieceOnFirst, piece.front())) {
      queue_.swap(piece);
      services_.counters.bulk_pieces += is_lane_ ? 1 : 0;
    }
  }
  return !queue_.empty();
}

// Returns false if the stream is closed. Write errors are ignored here, because the reader sees the connection end.
bool Stream::post(Outgoing message) {
  std::deque<Outgoing> sent;  // destroyed without the lock
  Lock lock(writing_);
  if (closed_) {
    return false;
  }
  const bool is_first = started_ && !busy_ && queue_.empty();
  if (!is_first) {
    services_.releaser.hold(message.parts);
  }
  queue_.push_back(std::move(message));
  if (is_first) {
    write_queue(lock, 1, sent);
    if (sent.empty() && !queue_.empty() && !busy_) {
      // Another thread writes the rest. It must not release the owners, because that may block.
      services_.releaser.hold(queue_.front().parts);
    }
  }
  return true;
}

// The same for a control message, which is skipped if messages are queued.
bool Stream::post_control(Outgoing message) {
  {
    const Lock lock(writing_);
    if (!started_ || !queue_.empty()) {
      return false;
    }
  }
  return post(std::move(message));
}

void Stream::flush() {
  try {
    std::deque<Outgoing> sent;  // destroyed without the lock
    Lock lock(writing_);
    if (busy_) {
      again_ = true;
    } else if (started_) {
      write_queue(lock, kBatch, sent);
    }
  } catch (const std::bad_alloc&) {  // no other thread would write the rest
    ::shutdown(fd(), SHUT_RDWR);
  }
}

// Writes up to `most` messages, or a batch's bytes; the writer's thread then goes on. So the memory of `sent` is
// released soon, and other streams get their turn, even if the queue never becomes empty. Meanwhile other threads may
// append to it.
void Stream::write_queue(Lock& lock, size_t most, std::deque<Outgoing>& sent) {
  struct Busy {
    Stream& stream;
    explicit Busy(Stream& of) : stream(of) { stream.busy_ = true; }
    ~Busy() {
      stream.busy_ = false;
      stream.written_.notify_all();
    }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;
  };
  std::optional<Busy> busy(std::in_place, *this);
  size_t bytes = 0;
  const auto is_full = [&] { return sent.size() >= most || bytes >= kBatchBytes; };
  while (!closed_ && !is_full()) {
    const Written written = write_next(lock);
    if (written == Written::kNothing) {
      break;
    }
    if (written == Written::kFailed) {
      ::shutdown(fd(), SHUT_RDWR);
      sent.swap(queue_);
      break;
    }
    if (written == Written::kAll) {
      Outgoing& first = queue_.front();
      for (const Part& part : first.parts) {
        bytes += part.size;
      }
      try {
        sent.push_back(std::move(first));
      } catch (const std::bad_alloc&) {  // then it is released here, with the lock
      }
      queue_.pop_front();
    } else if (!again_) {
      break;
    }
  }
  if (queue_.empty() && !closed_) {  // close() writes without the lock
    channel_->trim();
  }
  busy.reset();
  if (is_full() && !closed_ && (!queue_.empty() || (may_take() && !link_->is_empty()))) {
    try {
      services_.writer.post([weak = weak_from_this()] {
        if (const auto stream = weak.lock()) {
          stream->flush();
        }
      });
    } catch (const std::bad_alloc&) {  // no other thread would write the rest
      ::shutdown(fd(), SHUT_RDWR);
    }
  }
}

// Writes the head of the queue, without the lock.
Stream::Written Stream::write_next(Lock& lock) {
  Written written = Written::kFailed;
  try {
    if (!has_more()) {
      return Written::kNothing;
    }
    Outgoing& first = queue_.front();
    again_ = false;
    lock.unlock();
    const uint64_t before = bytes_written_;
    written = write(first);
    yield_after_batch(before, bytes_written_);
  } catch (const std::bad_alloc&) {  // what was queued must not wait for the next message
  }
  if (!lock.owns_lock()) {
    lock.lock();
  }
  return written;
}

Stream::Written Stream::write(Outgoing& message) {
  for (;;) {
    iovec places[kMaxPlaces];
    size_t count = 0, offset = message.offset;
    for (size_t at = message.at; at <= message.parts.size() && count < kMaxPlaces; ++at, offset = 0) {
      const char* const data = at == 0 ? message.head.data() : static_cast<const char*>(message.parts[at - 1].data);
      const size_t size = at == 0 ? message.head.size() : message.parts[at - 1].size;
      if (size > offset) {
        places[count++] = {const_cast<char*>(data) + offset, size - offset};
      }
    }
    if (count == 0 && channel_->flush()) {
      return Written::kAll;
    }
    const ssize_t sent = count == 0 ? -1 : channel_->write(places, static_cast<int>(count));
    if (sent == -1) {
      timed_out_ = timed_out_ || errno == ETIMEDOUT;
      return errno == EAGAIN || errno == EWOULDBLOCK ? Written::kSome : Written::kFailed;
    }
    // A peer must answer heartbeats, so that it reads them is not enough.
    bytes_written_ += message.parts.empty() ? 0 : static_cast<uint64_t>(sent);
    for (auto left = static_cast<size_t>(sent); message.at <= message.parts.size();) {
      const size_t size = message.at == 0 ? message.head.size() : message.parts[message.at - 1].size;
      const size_t now = std::min(left, size - message.offset);
      left -= now;
      message.offset += now;
      if (message.offset < size) {
        break;
      }
      ++message.at;
      message.offset = 0;
    }
  }
}

void Stream::wait_until_sent(Clock::time_point deadline) {
  Lock lock(writing_);
  written_.wait_until(lock, deadline, [this] { return abandoned_ || closed_ || (queue_.empty() && !busy_); });
}

void Stream::abandon() {
  const Lock lock(writing_);
  abandoned_ = true;
  written_.notify_all();
  if (link_ && !is_lane_) {
    link_->abandon();
  }
}

void Stream::refuse(const std::string& reason) {
  ignoring_ = true;
  const size_t size = std::min(reason.size(), kLongestReason);
  Outgoing message{head_of(Kind::kRefusal, size, size), {}};
  std::copy_n(reason.data(), size, message.head.data() + sizeof(Header));
  post(std::move(message));
}

void Stream::forget(const std::string& reason) {
  if (!forgotten_) {
    farewell_ = reason;
    forgotten_ = true;
  }
}

Clock::duration Stream::check_liveness() {
  const auto now = Clock::now();
  const bool has_read = has_been_read();
  const bool is_late = is_unread();
  if (has_read || is_late) {
    last_activity_ = now;
  }
  if (is_late) {
    // No thread waits for events now. The peer must get its pongs all the same.
    if (const std::unique_lock<std::mutex> lock(reading_, std::try_to_lock); lock) {
      read_batch();
    }
  }
  const auto silence = now - last_activity_.load();
  if (silence >= duration_of(services_.settings.heartbeat) / 2 &&
      now - last_ping_ >= duration_of(services_.settings.heartbeat) / 2) {
    // Skipped behind queued messages, which it could not overtake.
    last_ping_ = now;
    post_control({head_of(Kind::kPing, 0, 0), {}});
  }
  return silence;
}

// Whether data has arrived that this worker has not read yet: then this worker is late, not the peer.
bool Stream::is_unread() {
  int bytes = 0;
  return ::ioctl(fd(), SIOCINQ, &bytes) == 0 && bytes > 0;
}

// Whether the peer has read of a message since the last call. The kernel counts the memory of what was written and not
// read, which is more than its bytes. If it has grown by less than what was written, the peer has read.
//
// Over TCP the kernel counts what is not acknowledged, and the system of a peer that is suspended acknowledges as much
// as fits into its buffer. So there this counts only if a ping would have waited behind messages, as in the middle of a
// large one. Otherwise the peer must answer pings.
bool Stream::has_been_read() {
  const uint64_t written = bytes_written_;
  int in_socket = 0;
  if (::ioctl(fd(), SIOCOUTQ, &in_socket) != 0) {
    return false;
  }
  const auto more_written = static_cast<int64_t>(written - std::exchange(checked_written_, written));
  const int64_t more_in_socket = in_socket - std::exchange(checked_in_socket_, in_socket);
  const bool was_backed_up = std::exchange(was_backed_up_, is_backed_up(in_socket));
  return more_in_socket < more_written && (was_backed_up || is_unix_socket(fd()));
}

// Whether messages wait in the queue, or in a socket over TCP because the network or the peer takes no more.
bool Stream::is_backed_up(int in_socket) {
  int unsent = in_socket;
  ::ioctl(fd(), SIOCOUTQNSD, &unsent);  // unchanged if the system cannot tell
  const Lock lock(writing_);
  return unsent > 0 || !queue_.empty();
}

// --- reading ----------------------------------------------------------------------------------------

void Stream::pump() {
  const std::lock_guard<std::mutex> lock(reading_);
  read_batch();
}

// Needs the lock for reading.
void Stream::read_batch() {
  try {
    read_some();
  } catch (const std::bad_alloc&) {  // a message may be lost
    read_to_end_ = true;
    report_end("not enough memory to read");
  }
}

void Stream::read_some() {
  size_t bytes = 0;
  bool is_drained = false;
  for (int i = 0; i < kBatch && bytes < kBatchBytes && source_ != 0 && !read_to_end_; ++i) {
    const uint64_t before = reader_.bytes_read();
    const MessageReader::Outcome outcome = reader_.next(*channel_);
    if (const uint64_t more = reader_.bytes_read() - before; more > 0) {
      bytes += more;
      yield_after_batch(before, before + more);
      last_activity_ = Clock::now();
    }
    if (outcome == MessageReader::Outcome::kBlocked) {
      is_drained = true;
      break;
    }
    if (!handle(outcome)) {
      return;
    }
  }
  if (source_ == 0 || read_to_end_) {
    return;
  }
  if (is_drained) {
    if (expects_) {
      channel_->expect(reader_.bytes_left(kPiece));
    }
    services_.inbox.rearm(source_, fd());
  } else {
    services_.inbox.again(source_);  // the reader may hold messages already, of which the socket knows nothing
  }
}

// Returns false if no more data will arrive.
bool Stream::handle(MessageReader::Outcome outcome) {
  switch (outcome) {
    case MessageReader::Outcome::kMessage: {
      if (forgotten_ && !ignoring_) {
        refuse(farewell_);
      }
      if (ignoring_) {
        ++services_.counters.dropped;
        return true;
      }
      ++services_.counters.messages_received;
      Event event;
      event.peer = peer_;
      event.parts = std::move(reader_.parts());
      services_.inbox.push(std::move(event));
      return true;
    }
    case MessageReader::Outcome::kPing:
      // Nothing is queued for a peer that sends pings but does not read.
      post_control({head_of(Kind::kPong, 0, 0), {}});
      return true;
    case MessageReader::Outcome::kPong:
    case MessageReader::Outcome::kPart:
    case MessageReader::Outcome::kBlocked:
      return true;
    case MessageReader::Outcome::kRefusal:
      report_end("the peer rejected this connection: " + reader_.text());
      break;
    case MessageReader::Outcome::kMalformed:
      ++services_.counters.rejected;
      refuse(reader_.text());
      report_end("the peer sent an invalid message: " + reader_.text());
      break;
    case MessageReader::Outcome::kEnd:
      report_end(timed_out_ ? kNoHeartbeat : reader_.text());
      break;
  }
  read_to_end_ = true;
  return false;
}

void Stream::report_end(const std::string& reason) {
  std::call_once(told_, [&] { on_end_(reason); });
}

// Needs the lock for writing.
void Stream::write_rest(Lock& lock, Clock::time_point deadline, std::deque<Outgoing>& sent) {
  written_.wait(lock, [this] { return !busy_; });
  while (started_ && !closed_ && Clock::now() < deadline && has_more()) {
    const Written written = write(queue_.front());
    if (written == Written::kAll) {
      sent.push_back(std::move(queue_.front()));
      queue_.pop_front();
      continue;
    }
    if (written == Written::kFailed) {
      break;
    }
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd room{fd(), POLLOUT, 0};
    ::poll(&room, 1, static_cast<int>(std::clamp<int64_t>(wait, 0, 1 << 30)));
  }
}

void Stream::drain(Clock::time_point deadline) {
  std::deque<Outgoing> sent;  // destroyed without the lock
  {
    Lock lock(writing_);
    write_rest(lock, deadline, sent);
    if (!started_ || closed_) {
      return;
    }
  }
  wait_until_arrived(deadline);
}

void Stream::close(Clock::time_point deadline) {
  std::deque<Outgoing> sent, left;  // destroyed without the lock
  {
    Lock lock(writing_);
    if (closed_) {
      return;
    }
    write_rest(lock, deadline, sent);
    closed_ = true;
    left.swap(queue_);
    if (watch_ != 0) {
      services_.writer.unwatch(watch_, fd());
    }
  }
  if (link_ && !is_lane_) {
    link_->close();
  }
  if (Clock::now() < deadline && !is_unix_socket(fd())) {
    try {
      channel_->finish();
    } catch (const std::bad_alloc&) {  // the other side sees the end of the socket all the same
    }
  }
  wait_until_arrived(deadline);
  std::lock_guard<std::mutex> lock(reading_);
  if (source_ != 0) {
    services_.inbox.remove(source_, fd());
    source_ = 0;
    try {
      read_rest();
    } catch (const std::bad_alloc&) {  // the rest is lost with the connection
    }
  }
  ::shutdown(fd(), SHUT_RDWR);
}

// Reads what has arrived, and no more, because the peer may send without end. Needs the lock for reading.
void Stream::read_rest() {
  int in_socket = 0;
  ::ioctl(fd(), SIOCINQ, &in_socket);
  const uint64_t enough = reader_.bytes_read() + static_cast<uint64_t>(in_socket) + kMostHeld;
  for (bool more = !read_to_end_; more && reader_.bytes_read() < enough;) {
    const MessageReader::Outcome outcome = reader_.next(*channel_);
    more = outcome != MessageReader::Outcome::kBlocked && handle(outcome);
  }
}

// Waits until the host of the other side has what was sent. To close a TCP connection on which data has arrived that
// was not read resets it, and then the system drops what it has not sent yet. A Unix socket passes data on at once.
void Stream::wait_until_arrived(Clock::time_point deadline) const {
  if (Clock::now() >= deadline || is_unix_socket(fd())) {
    return;
  }
  for (int left = 0; ::ioctl(fd(), SIOCOUTQ, &left) == 0 && left > 0 && Clock::now() < deadline;) {
    pollfd none{fd(), 0, 0};  // an error ends the wait
    if (::poll(&none, 1, 1) != 0) {
      break;
    }
  }
}

}  // namespace rpc_backends::zeromq
