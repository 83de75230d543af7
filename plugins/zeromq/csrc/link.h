// The connections between two workers that belong together: the first one carries small messages, the others, the
// lanes, carry pieces of large ones. So a small message does not wait behind a large one, and a large one may use
// several connections. While there is no lane, the first connection carries the pieces, too, one after each small
// message.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "assembly.h"
#include "inbox.h"
#include "outgoing.h"

namespace rpc_backends::zeromq {

class Stream;

class Link {
 public:
  // `on_large`: called once, on any thread, when a large message is sent or arrives for the first time.
  explicit Link(uint64_t max_message, std::function<void()> on_large = nullptr)
      : assembly_(max_message), on_large_(std::move(on_large)) {}

  // Adds a connection, which has started. `is_lane`: otherwise it is the first one.
  void add(const std::shared_ptr<Stream>& stream, bool is_lane);
  bool has_lanes() const { return has_lanes_; }

  // Queues a large message. Returns false if the link is closed.
  bool send(Parts parts);

  // Takes the next piece, of at most `most` bytes. Returns false if no message is queued.
  bool take(size_t most, Outgoing& piece);
  bool is_empty() const { return is_empty_; }

  // For the reader of each connection.
  Assembly& assembly();

  // Waits, at most until `deadline`, until no piece is queued, or none will be taken.
  void wait_until_taken(Clock::time_point deadline);
  // No piece will be taken.
  void abandon();
  // Drops what is queued.
  void close();

 private:
  struct Large {
    Parts parts;
    wire::PieceHead next;  // where the next piece begins
  };

  void report_large();

  Assembly assembly_;
  const std::function<void()> on_large_;
  std::atomic<bool> told_{false};
  std::atomic<bool> has_lanes_{false}, is_empty_{true};

  std::mutex mutex_;
  std::condition_variable taken_;
  std::vector<std::weak_ptr<Stream>> lanes_;
  std::weak_ptr<Stream> first_;
  std::deque<Large> queue_;
  uint64_t next_number_ = 0;
  bool abandoned_ = false;
  bool closed_ = false;
};

}  // namespace rpc_backends::zeromq
