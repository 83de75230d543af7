// Assembles messages from the frames of one connection; see wire.h. All input is untrusted.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "socket.h"

namespace rpc_backends::zeromq {

// A message with missing pieces. Several threads copy pieces into it at once.
struct Unfinished {
  Parts parts;
  std::atomic<uint64_t> missing{0};
};

// A piece, and its place in the message.
class Piece {
 public:
  Piece(std::shared_ptr<Unfinished> message, char* place, std::vector<Frame> frames)
      : message_(std::move(message)), place_(place), frames_(std::move(frames)) {}

  // Copies the piece to its place. Returns the message's parts if this was the last piece.
  std::optional<Parts> put();

 private:
  std::shared_ptr<Unfinished> message_;
  char* place_;
  std::vector<Frame> frames_;
};

class Assembler {
 public:
  explicit Assembler(uint64_t max_message) : max_message_(max_message) {}

  struct Outcome {
    enum class Kind {
      kNothing,    // nothing is complete yet
      kMessage,    // `parts`
      kPiece,      // `piece` must be copied to its place
      kRefusal,    // the peer accepts nothing more, for the reason in `text`
      kMalformed,  // `text` says what is wrong
    };
    Kind kind = Kind::kNothing;
    Parts parts;
    std::optional<Piece> piece;
    std::string text;
  };

  // Whether pieces of a message are still missing.
  bool is_in_message() const { return progress_.message != nullptr; }

  // Takes a ZeroMQ message whose first frame is `first`; the other frames are read from `socket`.
  Outcome take(Frame first, Socket& socket);

 private:
  // Where the next pieces belong.
  struct Progress {
    std::shared_ptr<Unfinished> message;  // null if no pieces are expected
    std::vector<size_t> parts;            // the parts that come in pieces
    size_t current = 0;                   // index into `parts`
    size_t offset = 0;                    // within that part
  };

  Outcome start(std::vector<Frame> frames);
  Parts place(Frame head, std::vector<Frame> frames, std::vector<size_t>& in_pieces) const;
  Outcome take_piece(std::vector<Frame> frames);
  void check(Frame& head, std::vector<Frame>& frames) const;

  const uint64_t max_message_;
  Progress progress_;
};

}  // namespace rpc_backends::zeromq
