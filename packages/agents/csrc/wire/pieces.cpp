#include "wire/pieces.h"

#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <iterator>

namespace rpc_backends {

// --- one message --------------------------------------------------------------------------------------

void ArrivingMessage::add_streams(const std::vector<c10::Device>& devices) {
  for (const c10::Device& device : devices) {
    const auto is_its = [&](const c10::Stream& stream) { return stream.device() == device; };
    if (std::none_of(streams_.begin(), streams_.end(), is_its)) {
      streams_.push_back(streams_from_pool({device}).front());
    }
  }
}

std::optional<ArrivingMessage::Whole> ArrivingMessage::add_piece(const PieceHead& head, const Part& bytes,
                                                                 c10::Device device,
                                                                 const std::vector<c10::Device>& devices,
                                                                 Copies& copies, const Reserve& reserve) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_dropped_) {
    return std::nullopt;
  }
  add_streams(devices);
  const c10::MultiStreamGuard guard(streams_);
  auto entry = storages_.find(head.storage);
  if (entry == storages_.end()) {
    reserve(head.storage_size);
    const auto pieces = static_cast<size_t>((head.storage_size - 1) / kPieceBytes + 1);
    entry =
        storages_.emplace(head.storage, Storage{empty_storage(head.storage_size, device), std::vector<bool>(pieces)})
            .first;
  }
  Storage& storage = entry->second;
  const size_t number = static_cast<size_t>(head.offset / kPieceBytes);
  if (storage.memory.nbytes() != head.storage_size || storage.memory.device() != device || storage.arrived[number]) {
    throw BadFrame("a piece of a storage differs from the others, or came twice");
  }
  copies.into(storage.memory, head.offset, storage_on(bytes));
  copies.record();
  storage.arrived[number] = true;
  arrived_ += bytes.size;
  return take_whole();
}

std::optional<ArrivingMessage::Whole> ArrivingMessage::add_message(const Head& head, const Parts& parts,
                                                                   const std::vector<c10::Device>& devices,
                                                                   const Reserve& reserve) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_dropped_) {
    return std::nullopt;
  }
  if (parts_) {
    throw BadFrame("it came twice");
  }
  add_streams(devices);
  reserve(size_of(parts));
  parts_ = parts;
  expected_ = head.bytes_in_pieces;
  return take_whole();
}

std::optional<ArrivingMessage::Whole> ArrivingMessage::take_whole() {
  if (!parts_ || arrived_ < expected_) {
    return std::nullopt;
  }
  if (arrived_ > expected_) {
    throw BadFrame("it has more pieces than it claims");
  }
  Whole whole{std::move(*parts_), {}, arrived_, streams_};
  for (auto& [number, storage] : storages_) {
    whole.storages.emplace(number, std::move(storage.memory));
  }
  storages_.clear();
  is_dropped_ = true;
  return whole;
}

bool ArrivingMessage::is_dropped() {
  std::lock_guard<std::mutex> lock(mutex_);
  return is_dropped_;
}

bool ArrivingMessage::drop() {
  // Destroyed without the lock: that may need the GIL.
  std::map<uint32_t, Storage> storages;
  std::optional<Parts> parts;
  std::lock_guard<std::mutex> lock(mutex_);
  storages.swap(storages_);
  parts.swap(parts_);
  return !std::exchange(is_dropped_, true);
}

// --- all messages -------------------------------------------------------------------------------------

std::shared_ptr<ArrivingMessage> ArrivingMessages::find(const Key& key, Clock::time_point now) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = messages_.find(key);
  if (entry == messages_.end()) {
    return nullptr;
  }
  peers_[key.peer].heard = entry->second.heard = now;
  entry->second.is_cut_off = false;
  return entry->second.message;
}

std::shared_ptr<ArrivingMessage> ArrivingMessages::find_or_add(const Key& key, Clock::time_point now) {
  if (auto message = find(key, now)) {
    return message;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  // A call has one answer, and its callee reserves max_message_bytes here at most. A worker that was started again
  // under the same id has not received the call.
  if (key.kind == FrameKind::kAnswer && has_other_session(key)) {
    throw BadFrame("pieces of it come from two sessions");
  }
  Peer& peer = peers_[key.peer];
  peer.heard = now;
  if (peer.messages >= kMost) {
    throw BadFrame("more than " + std::to_string(kMost) + " messages of this worker are unfinished");
  }
  // The message is made first, so that an exception leaves no entry without one.
  const auto [entry, is_new] = messages_.try_emplace(key, Entry{std::make_shared<ArrivingMessage>(), 0, now});
  peer.messages += is_new ? 1 : 0;
  entry->second.heard = now;
  return entry->second.message;
}

bool ArrivingMessages::has_other_session(const Key& key) const {
  const auto first = messages_.lower_bound({key.peer, key.kind, key.call, 0});
  return first != messages_.end() && first->first.peer == key.peer && first->first.kind == key.kind &&
         first->first.call == key.call && first->first.session != key.session;
}

void ArrivingMessages::reserve(const Key& key, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = messages_.find(key);
  if (entry == messages_.end()) {
    throw BadFrame("it was given up");
  }
  Peer& peer = peers_[key.peer];
  if (bytes > message_bytes_ || entry->second.bytes > message_bytes_ - bytes) {
    throw BadFrame("its pieces have more bytes than max_message_bytes of the receiving worker, " +
                   std::to_string(message_bytes_));
  }
  if (key.kind == FrameKind::kRequest) {
    if (bytes > requests_bytes_ - peer.bytes) {
      throw BadFrame(
          "the unfinished requests of the sender have more bytes than max_message_bytes and "
          "max_unanswered_bytes of the receiving worker, " +
          std::to_string(requests_bytes_));
    }
    peer.bytes += bytes;
  }
  entry->second.bytes += bytes;
}

// Call with the lock.
void ArrivingMessages::erase(std::map<Key, Entry>::iterator entry) {
  const auto peer = peers_.find(entry->first.peer);
  peer->second.bytes -= entry->first.kind == FrameKind::kRequest ? entry->second.bytes : 0;
  if (--peer->second.messages == 0) {
    peers_.erase(peer);
  }
  messages_.erase(entry);
}

void ArrivingMessages::remove(const Key& key) {
  std::shared_ptr<ArrivingMessage> message;  // destroyed without the lock
  std::lock_guard<std::mutex> lock(mutex_);
  if (const auto entry = messages_.find(key); entry != messages_.end()) {
    message = entry->second.message;
    erase(entry);
  }
}

void ArrivingMessages::lose(int peer, Clock::time_point now) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [key, entry] : messages_) {
    if (key.peer == peer && !entry.is_cut_off) {
      entry.is_cut_off = true;
      entry.heard = now;
    }
  }
}

ArrivingMessages::Dropped ArrivingMessages::remove_if(const std::function<bool(const Key&, const Entry&)>& which) {
  Dropped removed;
  std::lock_guard<std::mutex> lock(mutex_);
  removed.reserve(messages_.size());  // throws before a message is removed
  for (auto entry = messages_.begin(); entry != messages_.end();) {
    const auto next = std::next(entry);
    if (which(entry->first, entry->second)) {
      removed.emplace_back(entry->first, entry->second.message);
      erase(entry);
    }
    entry = next;
  }
  return removed;
}

void ArrivingMessages::forget(int peer) {
  for (const auto& [key, message] :
       remove_if([peer](const Key& key, const Entry& /*entry*/) { return key.peer == peer; })) {
    (void)message->drop();
  }
}

void ArrivingMessages::clear() {
  for (const auto& [key, message] : remove_if([](const Key& /*key*/, const Entry& /*entry*/) { return true; })) {
    (void)message->drop();
  }
}

std::vector<ArrivingMessages::Key> ArrivingMessages::drop_stale(const std::function<bool(const Key&)>& is_awaited,
                                                                Clock::time_point now) {
  const auto is_stale = [&](const Key& key, const Entry& entry) {
    if (key.kind == FrameKind::kAnswer) {
      return !is_awaited(key);
    }
    return now - entry.heard > (entry.is_cut_off ? kSilenceAfterLoss : kSilenceOfRequest) ||
           now - peers_[key.peer].heard > kSilence;
  };
  std::vector<Key> requests;
  requests.reserve(size());
  for (const auto& [key, message] : remove_if(is_stale)) {
    if (message->drop() && key.kind == FrameKind::kRequest) {
      requests.push_back(key);
    }
  }
  return requests;
}

size_t ArrivingMessages::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return messages_.size();
}

}  // namespace rpc_backends
