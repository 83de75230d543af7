// How what comes by one connection becomes messages again; see wire.h. Nothing of it is believed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "socket.h"

namespace rpc_backends::zeromq {

// A message of which pieces are still missing. Pieces are put in by several threads at once.
struct Unfinished {
  Parts parts;
  std::atomic<uint64_t> missing{0};
};

// A piece, and where it belongs.
class Piece {
 public:
  Piece(std::shared_ptr<Unfinished> message, char* place, std::vector<Frame> frames)
      : message_(std::move(message)), place_(place), frames_(std::move(frames)) {}

  // Puts it there. Returns the parts of the message if it was the last.
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
      kNothing,    // so far
      kMessage,    // `parts`
      kPiece,      // `piece` has to be put in its place
      kRefusal,    // the peer takes nothing more, for the reason in `text`
      kMalformed,  // `text` says how
    };
    Kind kind = Kind::kNothing;
    Parts parts;
    std::optional<Piece> piece;
    std::string text;
  };

  // Whether pieces of a message are to come still.
  bool is_in_message() const { return progress_.message != nullptr; }

  // Takes a ZeroMQ message whose first frame is `first`, and whose others are next in `socket`.
  Outcome take(Frame first, Socket& socket);

 private:
  // Where the pieces that come next belong.
  struct Progress {
    std::shared_ptr<Unfinished> message;  // null if no pieces are to come
    std::vector<size_t> parts;            // that come in pieces
    size_t current = 0;                   // of these
    size_t offset = 0;                    // in that
  };

  Outcome start(std::vector<Frame> frames);
  Parts place(Frame head, std::vector<Frame> frames, std::vector<size_t>& in_pieces) const;
  Outcome take_piece(std::vector<Frame> frames);
  void check(Frame& head, std::vector<Frame>& frames) const;

  const uint64_t max_message_;
  Progress progress_;
};

}  // namespace rpc_backends::zeromq
