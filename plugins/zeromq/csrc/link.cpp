#include "link.h"

#include <algorithm>
#include <new>
#include <utility>

#include "stream.h"

namespace rpc_backends::zeromq {

using wire::PieceHead;

void Link::add(const std::shared_ptr<Stream>& stream, bool is_lane) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_lane) {
      lanes_.push_back(stream);
      has_lanes_ = true;
    } else {
      first_ = stream;
    }
  }
  stream->flush();
}

void Link::report_large() {
  if (on_large_ && !told_.exchange(true)) {
    try {
      on_large_();
    } catch (const std::bad_alloc&) {
      told_ = false;
      throw;
    }
  }
}

Assembly& Link::assembly() {
  report_large();
  return assembly_;
}

// What may throw comes before the message is queued: a message whose sender gets an error must not leave.
bool Link::send(Parts parts) {
  report_large();
  Large message;
  for (const Part& part : parts) {
    message.next.total += part.size;
  }
  message.next.parts = static_cast<uint32_t>(parts.size());
  message.parts = std::move(parts);
  std::vector<std::weak_ptr<Stream>> takers;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) {
      return false;
    }
    takers = lanes_.empty() ? std::vector<std::weak_ptr<Stream>>{first_} : lanes_;
    message.next.message = next_number_++;
    queue_.push_back(std::move(message));
    is_empty_ = false;
  }
  for (const auto& taker : takers) {
    if (is_empty_) {
      break;
    }
    if (const auto stream = taker.lock()) {
      stream->flush();
    }
  }
  return true;
}

bool Link::take(size_t most, Outgoing& piece) {
  if (is_empty_) {
    return false;
  }
  Parts done;  // destroyed without the lock
  std::lock_guard<std::mutex> lock(mutex_);
  if (queue_.empty()) {
    return false;
  }
  Large& message = queue_.front();
  PieceHead next = message.next;
  PieceHead head = next;
  std::vector<uint64_t> sizes;
  size_t left = most;
  while (next.first < next.parts && left > 0) {
    const Part& part = message.parts[next.first];
    const size_t now = std::min(left, static_cast<size_t>(part.size - next.offset));
    sizes.push_back(part.size);
    piece.parts.push_back({static_cast<const char*>(part.data) + next.offset, now, part.owner});
    head.size += now;
    left -= now;
    next.offset += now;
    if (next.offset < part.size) {
      break;
    }
    ++next.first;
    next.offset = 0;
  }
  const size_t size_bytes = sizes.size() * sizeof(uint64_t);
  piece.head = head_of(wire::Kind::kPiece, sizes.size(), sizeof head + size_bytes);
  std::memcpy(piece.head.data() + sizeof(wire::Header), &head, sizeof head);
  std::memcpy(piece.head.data() + sizeof(wire::Header) + sizeof head, sizes.data(), size_bytes);
  message.next = next;  // nothing throws from here on
  if (next.first == next.parts) {
    done.swap(message.parts);
    queue_.pop_front();
    is_empty_ = queue_.empty();
    taken_.notify_all();
  }
  return true;
}

void Link::wait_until_taken(Clock::time_point deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  taken_.wait_until(lock, deadline, [this] { return abandoned_ || closed_ || queue_.empty(); });
}

void Link::abandon() {
  std::lock_guard<std::mutex> lock(mutex_);
  abandoned_ = true;
  taken_.notify_all();
}

void Link::close() {
  std::deque<Large> left;  // destroyed without the lock
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  left.swap(queue_);
  is_empty_ = true;
  taken_.notify_all();
}

}  // namespace rpc_backends::zeromq
