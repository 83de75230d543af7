#include "inspect/wrapper.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "rpc_backends_agents/interceptor.h"

namespace rpc_backends {

namespace {

constexpr size_t kBytesOfLength = 8;
// The longest name of a device, and the most entries of a device map.
constexpr size_t kLongestDevice = 64;
constexpr int kMostDevices = 256;
constexpr std::string_view kTag("ctorch.jit._pickle\nrestore_type_tag\nq\x00", 38);

// Reads what torch's pickler writes. After the first thing that differs, all reads fail.
class WrapperReader {
 public:
  explicit WrapperReader(std::string_view bytes) : left_(bytes) {}

  bool take(std::string_view expected) {
    is_valid_ = is_valid_ && left_.starts_with(expected);
    if (is_valid_) {
      left_.remove_prefix(expected.size());
    }
    return is_valid_;
  }

  // Whether the next bytes are these; takes them only then.
  bool take_if(std::string_view expected) { return is_valid_ && left_.starts_with(expected) && take(expected); }

  int64_t number() {
    if (take_if("K")) {
      return static_cast<int64_t>(little_endian(1));
    }
    if (take_if("M")) {
      return static_cast<int64_t>(little_endian(2));
    }
    if (take_if("J")) {
      return static_cast<int32_t>(little_endian(4));
    }
    take("\x8a\x08");
    return static_cast<int64_t>(little_endian(8));
  }

  // A text that is kept in the memo, or its number there.
  void device() {
    if (take_if("h")) {
      const uint64_t number = little_endian(1);
      is_valid_ = is_valid_ && std::find(texts_.begin(), texts_.end(), number) != texts_.end();
      return;
    }
    take("X");
    const uint64_t size = little_endian(4);
    is_valid_ = is_valid_ && size <= kLongestDevice && size <= left_.size();
    if (is_valid_) {
      left_.remove_prefix(size);
      texts_.push_back(next_);
      memo();
    }
  }

  // The opcode that keeps the last value under the next number.
  void memo() {
    take("q");
    const uint64_t number = little_endian(1);
    is_valid_ = is_valid_ && number == next_;
    ++next_;
  }

  // A name of torch's function that sets types is the first entry of the memo.
  void tag() {
    take(kTag);
    next_ = 1;
  }

  bool is_valid() const { return is_valid_; }
  bool is_at_end() const { return is_valid_ && left_.empty(); }

 private:
  uint64_t little_endian(size_t size) {
    is_valid_ = is_valid_ && left_.size() >= size;
    uint64_t number = 0;
    for (size_t i = 0; is_valid_ && i < size; ++i) {
      number |= static_cast<uint64_t>(static_cast<unsigned char>(left_[i])) << (8 * i);
    }
    if (is_valid_) {
      left_.remove_prefix(size);
    }
    return number;
  }

  std::string_view left_;
  bool is_valid_ = true;
  uint64_t next_ = 0;            // the number of the next entry of the memo
  std::vector<uint64_t> texts_;  // the numbers of the entries that are texts
};

// The pickle at the end of a payload; takes it off the payload.
std::optional<std::string_view> take_pickle(std::string_view& payload) {
  if (payload.size() < kBytesOfLength) {
    return std::nullopt;
  }
  uint64_t size = 0;
  for (const char byte : payload.substr(payload.size() - kBytesOfLength)) {
    size = (size << 8) | static_cast<unsigned char>(byte);
  }
  payload.remove_suffix(kBytesOfLength);
  if (size > payload.size()) {
    return std::nullopt;
  }
  const std::string_view pickle = payload.substr(payload.size() - size);
  payload.remove_suffix(size);
  return pickle;
}

std::optional<Wrapped> wrapped(const WrapperReader& reader, int64_t type, std::string_view payload,
                               std::string_view pickle) {
  if (!reader.is_at_end() || type < 0 || type > INT32_MAX) {
    return std::nullopt;
  }
  return Wrapped{static_cast<int32_t>(type), payload, pickle};
}

}  // namespace

// A tuple: the type, the ids of context and message, the sender's id, and the device map.
std::optional<Wrapped> read_autograd_wrapper(std::string_view payload) {
  const auto pickle = take_pickle(payload);
  if (!pickle) {
    return std::nullopt;
  }
  WrapperReader reader(*pickle);
  reader.take("\x80\x02(");
  const int64_t type = reader.number();
  for (int i = 0; i < 3; ++i) {
    reader.number();
  }
  reader.tag();
  reader.take("}(");
  for (int i = 0; i < kMostDevices && reader.is_valid() && !reader.take_if("u"); ++i) {
    reader.device();
    reader.device();
    if (i == kMostDevices - 1) {
      reader.take("u");
    }
  }
  reader.take({"X\x0e\0\0\0Dict[str, str]", 19});
  reader.memo();
  reader.take("\x86R");
  reader.memo();
  reader.take("t.");
  return wrapped(reader, type, payload, *pickle);
}

InspectedRequest unwrap(int32_t type, std::string_view payload) {
  InspectedRequest request{type, {}, payload};
  while (request.type == kForwardAutogradRequest || request.type == kRunWithProfilingRequest) {
    const auto wrapper = request.type == kForwardAutogradRequest ? read_autograd_wrapper(request.payload)
                                                                 : read_profiling_wrapper(request.payload);
    if (!wrapper) {
      break;
    }
    request.wrappers.push_back(request.type);
    request.type = wrapper->type;
    request.payload = wrapper->payload;
  }
  return request;
}

// A tuple: the type, the profiler's state with two settings, and an id of two numbers.
std::optional<Wrapped> read_profiling_wrapper(std::string_view payload) {
  const auto pickle = take_pickle(payload);
  if (!pickle) {
    return std::nullopt;
  }
  WrapperReader reader(*pickle);
  reader.take("\x80\x02");
  const int64_t type = reader.number();
  reader.tag();
  reader.take("](");
  reader.number();
  for (int i = 0; i < 2; ++i) {
    if (!reader.take_if("\x88")) {
      reader.take("\x89");
    }
  }
  reader.take({"eX\x09\0\0\0List[Any]", 15});
  reader.memo();
  reader.take("\x86R");
  reader.number();
  reader.number();
  reader.take("\x86\x87.");
  return wrapped(reader, type, payload, *pickle);
}

// A tuple: the type, the id, the number of events, and the events. The first value of the pickle is the first element:
// nothing can be put before it, and what takes it from the stack leaves no number in its place.
std::optional<Wrapped> read_profiling_answer(std::string_view payload) {
  const auto pickle = take_pickle(payload);
  if (!pickle) {
    return std::nullopt;
  }
  WrapperReader reader(*pickle);
  reader.take("\x80\x02");
  reader.take_if("(");
  const int64_t type = reader.number();
  if (!reader.is_valid() || type < 0 || type > INT32_MAX) {
    return std::nullopt;
  }
  return Wrapped{static_cast<int32_t>(type), payload, *pickle};
}

}  // namespace rpc_backends
