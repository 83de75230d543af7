// A message as it is sent; see wire.h.
#pragma once

#include <string>
#include <vector>

#include "socket.h"
#include "wire.h"

namespace rpc_backends::zeromq {

// A message, made ready to be sent.
class Packed {
 public:
  // Throws TransportError if there is too much of it.
  Packed(Parts parts, uint64_t max_message, size_t largest_frame = wire::kLargestFrame);

  // The word to a peer that nothing more will be taken from it by this connection, and why.
  static Packed refusal(const std::string& reason);

  // Sends it to `route`, if not empty, of a ROUTER. Returns false if there is no connection (any more).
  bool send(Socket& socket, const std::string& route);

  // Whether some of it has been sent; it cannot be sent another way then.
  bool begun() const { return begun_; }

 private:
  explicit Packed(size_t largest_frame) : largest_frame_(largest_frame) {}
  static char* write_header(Frame& head, uint8_t kind, size_t count, size_t head_frames);
  void place(Part part, uint64_t& field, char*& next);
  void split_head();
  bool send_frames(Socket& socket, const Part& part, size_t offset, size_t size, bool more);
  bool send_pieces(Socket& socket, const std::string& route, const Part& part);

  const size_t largest_frame_;
  Frame head_;
  std::vector<Part> frames_;
  std::vector<Part> in_pieces_;
  bool begun_ = false;
};

}  // namespace rpc_backends::zeromq
