// Assembles the small messages that arrive on one link, or the large ones, and returns them in the order in which they
// were sent. Checks all data from the peer before it uses them.
//
// message() and part() return the memory for the payload of an active message. The owner of this object copies the
// payload there, at once or later, and then calls filled(). UCX receives large payloads directly into the memory that
// the agent gets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <vector>

#include "rpc_backends_agents/transport.h"
#include "wire.h"

namespace rpc_backends::ucx {

// The peer has sent data in a wrong format; the text says what is wrong.
class Malformed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Incoming {
 public:
  // The memory for a payload. `memory` has exactly the payload's size.
  struct Target {
    uint64_t number = 0;
    uint64_t index = 0;
    Part memory;
  };

  // `max_message`: limit for the parts of one message together, in bytes. `first`: the number of the first message.
  explicit Incoming(uint64_t max_message, uint64_t first = 0) : max_message_(max_message), next_(first) {}

  // Reads the header of a message, or of a part. Returns the memory for its payload. Throws Malformed, std::bad_alloc.
  Target message(const void* header, size_t header_size, size_t payload_size);
  Target part(const void* header, size_t header_size, size_t payload_size);
  // Reads the header of a part in memory of a device, and returns memory from the allocator. Throws what it throws,
  // too.
  Target device_part(const void* header, size_t header_size, size_t payload_size, const DeviceAllocator& allocate);

  // Records that a payload is in its memory. Appends the messages that are complete now, in order. Throws Malformed.
  void filled(const Target& target, std::vector<Parts>& complete);

 private:
  // The index of the payload with sizes and small parts.
  static constexpr uint64_t kSmallParts = UINT64_MAX;
  // Limits: messages that wait for an earlier, incomplete one; parts that have arrived before their message.
  static constexpr uint64_t kMostAhead = uint64_t{1} << 20;
  static constexpr size_t kMostEarly = 4096;

  struct Piece {
    Part memory;
    bool is_filled = false;
  };

  struct Message {
    bool has_sizes = false;
    size_t missing = 0;  // large parts that are not filled, if the sizes are known
    Parts parts;         // the large ones without data
    std::map<uint64_t, Piece> pieces;
  };

  Message& at(uint64_t number);
  template <typename Take>
  Target add(const wire::PartOfMessage& head, size_t payload_size, Take take);
  // Reads sizes and small parts. Returns the index of the first large part; the number of parts if there is none.
  size_t read_sizes(Message& message, size_t count, const Part& sizes_and_parts) const;
  void match(const Message& message, uint64_t index, size_t size) const;

  const uint64_t max_message_;
  uint64_t next_;
  size_t early_ = 0;  // parts of messages whose sizes are unknown
  uint64_t early_bytes_ = 0;
  std::map<uint64_t, Message> messages_;
  std::map<uint64_t, uint32_t> counts_;  // of parts, of messages whose sizes are on their way
};

}  // namespace rpc_backends::ucx
