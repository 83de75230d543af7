// Messages that arrive in pieces: their storages, until all bytes are there.
//
// Several threads handle the pieces of a message, so they may come here in any order, and the message itself, which is
// sent last, may come before some of them.
#pragma once

#include <c10/core/Stream.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "wire/codec.h"

namespace rpc_backends {

// A message whose pieces arrive. The first piece of a storage reserves its memory.
class ArrivingMessage {
 public:
  // A message with all of its storages.
  struct Whole {
    Parts parts;
    ArrivedStorages storages;
    uint64_t bytes = 0;
    std::vector<c10::Stream> streams;  // those on which the storages were copied
  };

  // Called with the bytes that the message needs in addition; throws BadFrame if they are too many.
  using Reserve = std::function<void(uint64_t)>;

  // Adds a piece: copies it to `device`, on a stream of this message. Returns the message if nothing is missing any
  // more. Throws BadFrame if the piece does not fit to the others. `devices`: the accelerators of this worker.
  std::optional<Whole> add_piece(const PieceHead& head, const Part& bytes, c10::Device device,
                                 const std::vector<c10::Device>& devices, Copies& copies, const Reserve& reserve);
  // Adds the message itself. Returns it if nothing is missing any more.
  std::optional<Whole> add_message(const Head& head, const Parts& parts, const std::vector<c10::Device>& devices,
                                   const Reserve& reserve);

  bool is_dropped();
  // Releases everything; later pieces are ignored. Returns false if that was done before.
  bool drop();

 private:
  struct Storage {
    c10::Storage memory;
    std::vector<bool> arrived;  // by the numbers of the pieces
  };

  void add_streams(const std::vector<c10::Device>& devices);
  std::optional<Whole> take_whole();

  std::mutex mutex_;
  std::vector<c10::Stream> streams_;
  std::map<uint32_t, Storage> storages_;
  uint64_t arrived_ = 0;
  std::optional<Parts> parts_;
  uint64_t expected_ = 0;
  bool is_dropped_ = false;
};

// The messages whose pieces arrive at an agent.
class ArrivingMessages {
 public:
  using Clock = std::chrono::steady_clock;

  struct Key {
    int peer = -1;
    FrameKind kind = FrameKind::kRequest;
    uint64_t call = 0;
    uint64_t session = 0;

    bool operator<(const Key& other) const {
      return std::tie(peer, kind, call, session) < std::tie(other.peer, other.kind, other.call, other.session);
    }
  };

  // If nothing comes from a peer for kSilence, its unfinished requests are given up: it may have been killed. A request
  // that a lost connection may have cut off is given up if no piece of it comes within kSilenceAfterLoss of the loss:
  // the peer may send others by then. A piece shows that its connection is not the lost one. Any request is given up if
  // no piece of it comes for kSilenceOfRequest: its sender may have ended the call between two pieces, which no message
  // reports. That is long, because a piece may have to wait behind many other messages of the sender.
  static constexpr std::chrono::seconds kSilence{60};
  static constexpr std::chrono::seconds kSilenceAfterLoss{5};
  static constexpr std::chrono::minutes kSilenceOfRequest{10};
  // The most unfinished messages of a peer.
  static constexpr size_t kMost = 4096;

  // `message_bytes`: the largest size of a message. `requests_bytes`: the largest size of the unfinished requests of a
  // peer, if that is more. This worker's own calls limit the answers.
  ArrivingMessages(uint64_t message_bytes, uint64_t requests_bytes)
      : message_bytes_(message_bytes), requests_bytes_(std::max(message_bytes, requests_bytes)) {}

  // Returns the message; null if nothing of it has come yet.
  std::shared_ptr<ArrivingMessage> find(const Key& key, Clock::time_point now = Clock::now());
  // The same, but a message of which nothing has come is added. Throws BadFrame if the peer has too many, or if another
  // session sends an answer to the same call.
  std::shared_ptr<ArrivingMessage> find_or_add(const Key& key, Clock::time_point now = Clock::now());
  // Counts bytes that a message needs; throws BadFrame if it, or the peer's unfinished requests together, need too
  // many.
  void reserve(const Key& key, uint64_t bytes);
  // Forgets a message that is whole or dropped.
  void remove(const Key& key);

  // A connection to the peer is lost: it may have cut off what has not arrived.
  void lose(int peer, Clock::time_point now = Clock::now());
  // Drops the messages of a peer that has left.
  void forget(int peer);
  // Drops all messages.
  void clear();
  // Drops the answers that nothing waits for, and the requests that are given up at `now`; returns the latter.
  std::vector<Key> drop_stale(const std::function<bool(const Key&)>& is_awaited, Clock::time_point now = Clock::now());

  size_t size() const;

 private:
  struct Entry {
    std::shared_ptr<ArrivingMessage> message;
    uint64_t bytes = 0;
    Clock::time_point heard;  // when the last piece came, or if is_cut_off, when the connection was lost
    bool is_cut_off = false;
  };
  struct Peer {
    size_t messages = 0;
    uint64_t bytes = 0;  // of its requests
    Clock::time_point heard;
  };

  using Dropped = std::vector<std::pair<Key, std::shared_ptr<ArrivingMessage>>>;

  // Whether another session of the same peer sends the message. Call with the lock.
  bool has_other_session(const Key& key) const;
  void erase(std::map<Key, Entry>::iterator entry);
  Dropped remove_if(const std::function<bool(const Key&, const Entry&)>& which);

  const uint64_t message_bytes_;
  const uint64_t requests_bytes_;
  mutable std::mutex mutex_;
  std::map<Key, Entry> messages_;
  std::map<int, Peer> peers_;
};

}  // namespace rpc_backends
