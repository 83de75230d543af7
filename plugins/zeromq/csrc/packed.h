// A message in its form on the wire; see wire.h.
#pragma once

#include <string>
#include <vector>

#include "socket.h"
#include "wire.h"

namespace rpc_backends::zeromq {

// A message that is ready to be sent.
class Packed {
 public:
  // Throws TransportError if the message is too large.
  Packed(Parts parts, uint64_t max_message, size_t largest_frame = wire::kLargestFrame);

  // Makes a refusal: it tells a peer that nothing more is accepted on this connection, and why.
  static Packed refusal(const std::string& reason);

  // Sends it, to `route` on a ROUTER socket unless that is empty. Returns false if the connection does not exist.
  bool send(Socket& socket, const std::string& route);

  // Whether some of it was sent. It cannot be sent on another connection then.
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
