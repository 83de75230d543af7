// For any pieces of large messages, on the connections of one link, an Assembly returns messages or reports what does
// not fit: no byte of a message has two places, and a message is complete only when each byte has arrived.
//
// An input is a list of steps. The first byte of a step is a kind and a connection, and two bytes are a number:
//
//   bytes   so many bytes follow, which arrive on the connection
//   run     so many times the byte that follows arrives: the contents of a piece
//   begin   a PieceHead and so many sizes follow, which go to an Assembly directly
//   finish  the piece that was begun so many pieces ago is complete
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../../plugins/zeromq/csrc/assembly.h"
#include "../../plugins/zeromq/csrc/message_reader.h"
#include "seeds.h"

namespace rpc_backends::zeromq {

namespace {

constexpr uint64_t kMaxMessage = 1 << 18;
constexpr size_t kConnections = 3;

enum Step : uint8_t { kBytes, kRun, kBegin, kFinish };

void look_at(const Parts& parts) {
  uint64_t bytes = 0;
  unsigned sum = 0;
  for (const Part& part : parts) {
    bytes += part.size;
    check(reinterpret_cast<uintptr_t>(part.data) % 16 == 0 || part.size == 0);
    for (size_t i = 0; i < part.size; ++i) {
      sum += static_cast<const uint8_t*>(part.data)[i];
    }
  }
  check(bytes <= kMaxMessage);
  volatile unsigned used = sum;
  (void)used;
}

// A connection over which messages and pieces arrive.
class Connection {
 public:
  explicit Connection(Assembly& assembly) : reader_(kMaxMessage, [&assembly]() -> Assembly& { return assembly; }) {
    int ends[2] = {-1, -1};
    check(::pipe2(ends, O_NONBLOCK) == 0);
    channel_ = std::make_unique<Channel>(std::make_unique<Fd>(ends[0]));
    to_ = std::make_unique<Fd>(ends[1]);
  }

  // Returns whether the connection is still open.
  bool arrive(const std::string& bytes) {
    for (size_t at = 0; at < bytes.size() && is_open_;) {
      const size_t size = std::min<size_t>(bytes.size() - at, 32768);  // fits into a pipe
      check(::write(to_->get(), bytes.data() + at, size) == static_cast<ssize_t>(size));
      at += size;
      for (int blocked = 0; blocked < 2 && is_open_;) {
        const MessageReader::Outcome outcome = reader_.next(*channel_);
        blocked = outcome == MessageReader::Outcome::kBlocked ? blocked + 1 : 0;
        is_open_ = outcome != MessageReader::Outcome::kMalformed && outcome != MessageReader::Outcome::kEnd;
        if (outcome == MessageReader::Outcome::kMessage) {
          look_at(reader_.parts());
          reader_.parts().clear();
        }
      }
    }
    return is_open_;
  }

 private:
  MessageReader reader_;
  std::unique_ptr<Channel> channel_;
  std::unique_ptr<Fd> to_;
  bool is_open_ = true;
};

// An Assembly, and which memory it has given to the pieces of each message.
class Direct {
 public:
  bool begin(const wire::PieceHead& head, const std::vector<uint64_t>& sizes) {
    Parts places;
    try {
      places = assembly_.begin(head, sizes);
    } catch (const BadPiece&) {
      return false;  // the link ends
    }
    uint64_t bytes = 0;
    for (const Part& place : places) {
      bytes += place.size;
      if (place.size == 0) {
        continue;
      }
      auto* const memory = static_cast<uint8_t*>(const_cast<void*>(place.data));
      std::memset(memory, 'x', place.size);
      std::map<uint8_t*, size_t>& taken = taken_[head.message];
      const auto after = taken.lower_bound(memory);
      check(after == taken.end() || memory + place.size <= after->first);
      check(after == taken.begin() || std::prev(after)->first + std::prev(after)->second <= memory);
      taken[memory] = place.size;
    }
    check(bytes == head.size && places.size() == sizes.size());
    begun_.push_back(head);
    return true;
  }

  bool finish(size_t ago) {
    if (ago >= begun_.size()) {
      return true;
    }
    const auto piece = begun_.end() - 1 - static_cast<std::ptrdiff_t>(ago);
    const wire::PieceHead head = *piece;
    begun_.erase(piece);
    try {
      const std::optional<Parts> parts = assembly_.finish(head.message);
      if (!parts) {
        return true;
      }
      look_at(*parts);
      uint64_t filled = 0, bytes = 0;
      for (const auto& [memory, size] : taken_[head.message]) {
        filled += size;
      }
      for (const Part& part : *parts) {
        bytes += part.size;
      }
      check(bytes == head.total && filled == head.total && parts->size() == head.parts);
      taken_.erase(head.message);
      return true;
    } catch (const BadPiece&) {
      return false;
    }
  }

 private:
  Assembly assembly_{kMaxMessage};
  std::vector<wire::PieceHead> begun_;
  std::map<uint64_t, std::map<uint8_t*, size_t>> taken_;
};

void run(const uint8_t* data, size_t size) {
  Assembly assembly(kMaxMessage);
  std::vector<std::unique_ptr<Connection>> connections(kConnections);
  Direct direct;
  const auto take = [&](void* to, size_t wanted) {
    const size_t taken = std::min(wanted, size);
    std::copy_n(data, taken, static_cast<uint8_t*>(to));
    data += taken;
    size -= taken;
  };
  for (bool is_open = true; is_open && size >= 3;) {
    const auto step = static_cast<Step>(data[0] & 3);
    std::unique_ptr<Connection>& connection = connections[data[0] / 4 % kConnections];
    uint16_t number = 0;
    std::memcpy(&number, data + 1, 2);
    data += 3;
    size -= 3;
    if (step == kFinish) {
      is_open = direct.finish(number);
    } else if (step == kBegin) {
      wire::PieceHead head;
      take(&head, sizeof head);
      std::vector<uint64_t> sizes(std::min<size_t>(number, size / sizeof(uint64_t)));
      take(sizes.data(), sizes.size() * sizeof(uint64_t));
      is_open = direct.begin(head, sizes);
    } else {
      if (!connection) {
        connection = std::make_unique<Connection>(assembly);
      }
      std::string bytes(step == kRun && size > 0 ? number : std::min<size_t>(number, size), 'x');
      take(bytes.data(), step == kRun ? 1 : bytes.size());
      if (step == kRun && !bytes.empty()) {
        std::fill(bytes.begin(), bytes.end(), bytes[0]);
      }
      is_open = connection->arrive(bytes);
    }
  }
}

void add_step(std::string& seed, Step step, size_t connection, size_t number, const std::string& bytes = {}) {
  const auto field = static_cast<uint16_t>(number);
  seed.push_back(static_cast<char>(step | connection << 2));
  seed.append(reinterpret_cast<const char*>(&field), sizeof field);
  seed += bytes;
}

// The pieces of a message of these parts, in pieces of this size.
struct Cut {
  wire::PieceHead head;
  std::vector<uint64_t> sizes;
};

std::vector<Cut> cut(uint64_t message, const std::vector<uint64_t>& parts, uint64_t piece_size) {
  uint64_t total = 0;
  for (const uint64_t part : parts) {
    total += part;
  }
  std::vector<Cut> pieces;
  uint64_t offset = 0;
  for (size_t first = 0; first < parts.size();) {
    Cut piece{{message, total, static_cast<uint32_t>(parts.size()), static_cast<uint32_t>(first), offset, 0}, {}};
    while (first < parts.size() && piece.head.size < piece_size) {
      const uint64_t taken = std::min(parts[first] - offset, piece_size - piece.head.size);
      piece.sizes.push_back(parts[first]);
      piece.head.size += taken;
      offset += taken;
      if (offset == parts[first]) {
        ++first;
        offset = 0;
      }
    }
    pieces.push_back(piece);
  }
  return pieces;
}

std::vector<std::string> all_seeds() {
  std::vector<std::string> written;
  const std::vector<std::vector<uint64_t>> all{
      {70000}, {10, 100000, 0}, {0, 20000, 0, 5, 50000, 40000}, std::vector<uint64_t>(9, 9000)};
  for (const auto& parts : all) {
    for (const uint64_t piece_size : {wire::kLeastPiece, uint64_t{30000}, uint64_t{1} << 18}) {
      std::vector<Cut> pieces = cut(1, parts, piece_size);
      for (const Cut& piece : cut(2, parts, piece_size)) {
        pieces.push_back(piece);
      }
      for (const bool reversed : {false, true}) {
        if (reversed) {
          std::reverse(pieces.begin(), pieces.end());
        }
        std::string& direct = written.emplace_back();
        std::string stream;
        for (size_t i = 0; i < pieces.size(); ++i) {
          const auto& [head, sizes] = pieces[i];
          const std::string head_bytes(reinterpret_cast<const char*>(&head), sizeof head);
          const std::string size_bytes(reinterpret_cast<const char*>(sizes.data()), sizes.size() * sizeof(uint64_t));
          add_step(direct, kBegin, 0, sizes.size(), head_bytes + size_bytes);
          wire::Header header;
          header.kind = static_cast<uint8_t>(wire::Kind::kPiece);
          header.count = static_cast<uint32_t>(sizes.size());
          const std::string start =
              std::string(reinterpret_cast<const char*>(&header), sizeof header) + head_bytes + size_bytes;
          add_step(stream, kBytes, i % kConnections, start.size(), start);
          for (uint64_t left = head.size; left > 0;) {
            const uint64_t now = std::min<uint64_t>(left, 60000);
            add_step(stream, kRun, i % kConnections, now, std::string(1, static_cast<char>('a' + i % 26)));
            left -= now;
          }
        }
        for (size_t i = 0; i < pieces.size(); ++i) {
          add_step(direct, kFinish, 0, i % 2 == 0 ? 0 : pieces.size() - i - 1);
        }
        written.push_back(stream);
      }
    }
  }
  return written;
}

}  // namespace

}  // namespace rpc_backends::zeromq

std::vector<std::string> seeds() {
  return rpc_backends::zeromq::all_seeds();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rpc_backends::zeromq::run(data, size);
  return 0;
}
