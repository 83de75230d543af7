#include "request_inspector.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>

#include "rpc_backends_agents/interceptor.h"
#include "rpc_backends_agents/siphash.h"

namespace rpc_backends {

namespace {

using torch::distributed::rpc::MessageType;

// interceptor.h repeats torch's numbers, because it must not include torch.
constexpr int32_t kNumbers[][2] = {
    {kScriptCall, MessageType::SCRIPT_CALL},
    {kPythonCall, MessageType::PYTHON_CALL},
    {kScriptRemoteCall, MessageType::SCRIPT_REMOTE_CALL},
    {kPythonRemoteCall, MessageType::PYTHON_REMOTE_CALL},
    {kScriptRRefFetchCall, MessageType::SCRIPT_RREF_FETCH_CALL},
    {kPythonRRefFetchCall, MessageType::PYTHON_RREF_FETCH_CALL},
    {kRRefUserDelete, MessageType::RREF_USER_DELETE},
    {kRRefForkRequest, MessageType::RREF_FORK_REQUEST},
    {kRRefChildAccept, MessageType::RREF_CHILD_ACCEPT},
    {kForwardAutogradRequest, MessageType::FORWARD_AUTOGRAD_REQ},
    {kBackwardAutogradRequest, MessageType::BACKWARD_AUTOGRAD_REQ},
    {kCleanupAutogradContextRequest, MessageType::CLEANUP_AUTOGRAD_CONTEXT_REQ},
    {kRunWithProfilingRequest, MessageType::RUN_WITH_PROFILING_REQ},
    {kRRefBackwardRequest, MessageType::RREF_BACKWARD_REQ},
};
constexpr bool are_the_same() {
  for (const auto& [ours, torchs] : kNumbers) {
    if (ours != torchs) {
      return false;
    }
  }
  return true;
}
static_assert(are_the_same());
static_assert(static_cast<int>(ErrorKind::kTimeout) == torch::distributed::rpc::RPCErrorType::TIMEOUT &&
              static_cast<int>(ErrorKind::kIntentional) == torch::distributed::rpc::RPCErrorType::INTENTIONAL_FAILURE);

// Keys of the digests: arbitrary, but the same in every process and release.
constexpr uint64_t kDigestKey0 = 0x7270632d6661756cULL;
constexpr uint64_t kDigestKey1 = 0x74732d6469676573ULL;
// The most opcodes that a search reads.
constexpr int kMostOpcodes = 4096;

// Reads the opcodes of a pickle without executing them. It only tracks strings, where the memo keeps them, and integers.
class PickleScan {
 public:
  explicit PickleScan(std::string_view bytes) : bytes_(bytes) {}

  enum class Found { kEnd, kText, kBytes, kGlobal, kNumber, kOther };

  // Reads the next opcode; returns kEnd at the end and at an unknown opcode.
  Found next() {
    unsigned char op = 0;
    if (!take_byte(op)) {
      return Found::kEnd;
    }
    switch (op) {
      case 0x80:  // PROTO
        return skip(1) ? Found::kOther : Found::kEnd;
      case 0x95:  // FRAME
        return skip(8) ? Found::kOther : Found::kEnd;
      case 0x8c:  // SHORT_BINUNICODE
        return text_of(1);
      case 'X':  // BINUNICODE
        return text_of(4);
      case 0x8d:  // BINUNICODE8
        return text_of(8);
      case 'C':  // SHORT_BINBYTES
        return bytes_of(1);
      case 'B':  // BINBYTES
        return bytes_of(4);
      case 0x8e:  // BINBYTES8
      case 0x96:  // BYTEARRAY8
        return bytes_of(8);
      case 'T':  // BINSTRING
        return bytes_of(4);
      case 'U':  // SHORT_BINSTRING
        return bytes_of(1);
      case 0x94: {  // MEMOIZE
        memo_[memo_.size()] = last_is_text_ ? std::optional(last_) : std::nullopt;
        return Found::kOther;
      }
      case 'q': {  // BINPUT
        uint64_t at = 0;
        return take_number(1, at) ? keep(at) : Found::kEnd;
      }
      case 'r': {  // LONG_BINPUT
        uint64_t at = 0;
        return take_number(4, at) ? keep(at) : Found::kEnd;
      }
      case 'h': {  // BINGET
        uint64_t at = 0;
        return take_number(1, at) ? recall(at) : Found::kEnd;
      }
      case 'j': {  // LONG_BINGET
        uint64_t at = 0;
        return take_number(4, at) ? recall(at) : Found::kEnd;
      }
      case 0x93: {  // STACK_GLOBAL: uses the two strings before it
        global_ = std::string(before_last_) + "." + std::string(last_);
        last_is_text_ = false;
        return Found::kGlobal;
      }
      case 'c': {  // GLOBAL: two lines
        std::string_view module;
        std::string_view name;
        if (!take_line(module) || !take_line(name)) {
          return Found::kEnd;
        }
        global_ = std::string(module) + "." + std::string(name);
        last_is_text_ = false;
        return Found::kGlobal;
      }
      case 'K':  // BININT1
        return number_of(1);
      case 'M':  // BININT2
        return number_of(2);
      case 'J':  // BININT, which has a sign
        return number_of(4, true);
      case 'G':  // BINFLOAT
        return other(8);
      case 0x8a: {  // LONG1: torch writes 8 bytes
        uint64_t size = 0;
        return !take_number(1, size) ? Found::kEnd : size == 8 ? number_of(8) : other(size);
      }
      case 0x8b:  // LONG4
        return other_of(4);
      case '(':   // MARK
      case ')':   // EMPTY_TUPLE
      case ']':   // EMPTY_LIST
      case '}':   // EMPTY_DICT
      case 't':   // TUPLE
      case 0x85:  // TUPLE1
      case 0x86:  // TUPLE2
      case 0x87:  // TUPLE3
      case 'N':   // NONE
      case 0x88:  // NEWTRUE
      case 0x89:  // NEWFALSE
      case 'R':   // REDUCE
      case 'b':   // BUILD
      case 'a':   // APPEND
      case 'e':   // APPENDS
      case 's':   // SETITEM
      case 'u':   // SETITEMS
      case 'd':   // DICT
      case 'l':   // LIST
      case '0':   // POP
      case '1':   // POP_MARK
      case '2':   // DUP
      case 'Q':   // BINPERSID
      case 0x81:  // NEWOBJ
      case 0x92:  // NEWOBJ_EX
      case 0x8f:  // EMPTY_SET
      case 0x90:  // ADDITEMS
      case 0x91:  // FROZENSET
      case 0x97:  // NEXT_BUFFER
      case 0x98:  // READONLY_BUFFER
        return other(0);
      default:  // STOP, and opcodes that neither Python nor torch writes
        return Found::kEnd;
    }
  }

  std::string_view text() const { return last_; }
  const std::string& global() const { return global_; }
  int64_t number() const { return number_; }
  size_t position() const { return at_; }

 private:
  bool take_byte(unsigned char& byte) {
    if (at_ >= bytes_.size()) {
      return false;
    }
    byte = static_cast<unsigned char>(bytes_[at_++]);
    return true;
  }

  bool take_number(int size, uint64_t& number) {
    if (bytes_.size() - at_ < static_cast<size_t>(size)) {
      return false;
    }
    number = 0;
    for (int i = 0; i < size; ++i) {
      number |= static_cast<uint64_t>(static_cast<unsigned char>(bytes_[at_ + i])) << (8 * i);
    }
    at_ += size;
    return true;
  }

  bool skip(uint64_t size) {
    if (bytes_.size() - at_ < size) {
      return false;
    }
    at_ += size;
    return true;
  }

  bool take_line(std::string_view& line) {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) {
      return false;
    }
    line = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return true;
  }

  Found text_of(int size_bytes) {
    uint64_t size = 0;
    if (!take_number(size_bytes, size) || bytes_.size() - at_ < size) {
      return Found::kEnd;
    }
    push(bytes_.substr(at_, size));
    at_ += size;
    return Found::kText;
  }

  Found bytes_of(int size_bytes) {
    uint64_t size = 0;
    if (!take_number(size_bytes, size) || bytes_.size() - at_ < size) {
      return Found::kEnd;
    }
    last_ = bytes_.substr(at_, size);
    last_is_text_ = false;
    at_ += size;
    return Found::kBytes;
  }

  Found other(uint64_t size) {
    last_is_text_ = false;
    return skip(size) ? Found::kOther : Found::kEnd;
  }

  Found number_of(int size, bool has_sign = false) {
    uint64_t number = 0;
    last_is_text_ = false;
    if (!take_number(size, number)) {
      return Found::kEnd;
    }
    number_ = has_sign ? static_cast<int32_t>(number) : static_cast<int64_t>(number);
    return Found::kNumber;
  }

  Found other_of(int size_bytes) {
    uint64_t size = 0;
    return take_number(size_bytes, size) ? other(size) : Found::kEnd;
  }

  void push(std::string_view text) {
    before_last_ = last_is_text_ ? last_ : std::string_view();
    last_ = text;
    last_is_text_ = true;
  }

  Found keep(uint64_t at) {
    memo_[at] = last_is_text_ ? std::optional(last_) : std::nullopt;
    return Found::kOther;
  }

  Found recall(uint64_t at) {
    const auto found = memo_.find(at);
    if (found == memo_.end() || !found->second) {
      last_is_text_ = false;
      return Found::kOther;
    }
    push(*found->second);
    return Found::kText;
  }

  const std::string_view bytes_;
  size_t at_ = 0;
  std::string_view last_;
  std::string_view before_last_;
  bool last_is_text_ = false;
  std::string global_;
  int64_t number_ = 0;
  std::unordered_map<uint64_t, std::optional<std::string_view>> memo_;
};

bool is_wrapper(int32_t type) {
  return type == MessageType::FORWARD_AUTOGRAD_REQ || type == MessageType::RUN_WITH_PROFILING_REQ;
}

// The first integer in a pickle from torch, which contains a tuple.
std::optional<int32_t> first_number(std::string_view pickle) {
  size_t at = 0;
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(pickle[i]); };
  if (pickle.size() < 5 || byte(0) != 0x80) {
    return std::nullopt;
  }
  at = 2;
  if (byte(at) == '(') {
    ++at;
  }
  const size_t left = pickle.size() - at;
  if (byte(at) == 'K' && left >= 2) {
    return byte(at + 1);
  }
  if (byte(at) == 'M' && left >= 3) {
    return byte(at + 1) | (byte(at + 2) << 8);
  }
  if (byte(at) == 'J' && left >= 5) {
    return static_cast<int32_t>(byte(at + 1) | (byte(at + 2) << 8) | (byte(at + 3) << 16) |
                                (static_cast<uint32_t>(byte(at + 4)) << 24));
  }
  return std::nullopt;
}

// Removes a wrapper of torch from a payload: a pickle at its end, followed by the length of the pickle.
bool take_wrapper(InspectedRequest& request) {
  std::string_view all = request.payload;
  if (all.size() < 8) {
    return false;
  }
  uint64_t size = 0;
  for (size_t i = all.size() - 8; i < all.size(); ++i) {
    size = (size << 8) | static_cast<unsigned char>(all[i]);
  }
  all.remove_suffix(8);
  if (size > all.size()) {
    return false;
  }
  const auto type = first_number(all.substr(all.size() - size));
  if (!type) {
    return false;
  }
  all.remove_suffix(size);
  request.wrappers.push_back(request.type);
  request.type = *type;
  request.payload = all;
  return true;
}

// The pickle of a Python function with its arguments, inside a request.
std::string_view python_part(const InspectedRequest& request) {
  if (request.type == MessageType::PYTHON_CALL) {
    return request.payload.empty() ? request.payload : request.payload.substr(1);
  }
  // PYTHON_REMOTE_CALL: a pickle from torch, which contains, after the tensors, the pickle from Python as a string.
  PickleScan scan(request.payload);
  for (int i = 0; i < kMostOpcodes; ++i) {
    const auto found = scan.next();
    if (found == PickleScan::Found::kEnd) {
      break;
    }
    if ((found == PickleScan::Found::kText || found == PickleScan::Found::kBytes) && scan.text().size() > 2 &&
        static_cast<unsigned char>(scan.text()[0]) == 0x80) {
      return scan.text();
    }
  }
  return {};
}

// Returns the function name, which is the last string of a script call; sets `end` to the position after it.
std::string script_function(std::string_view pickle, size_t& end) {
  PickleScan scan(pickle);
  std::string_view last;
  end = 0;
  while (true) {
    const auto found = scan.next();
    if (found == PickleScan::Found::kEnd) {
      break;
    }
    if (found == PickleScan::Found::kText) {
      last = scan.text();
      end = scan.position();
    }
  }
  return std::string(last);
}

uint64_t digest(std::string_view bytes) {
  SipHash hash(kDigestKey0, kDigestKey1);
  hash.add(bytes.data(), bytes.size());
  return hash.finish();
}

// A hash of all bytes for tensors: several times as fast as SipHash, with eight sums that a processor computes in
// parallel. It is not safe against contents that are made to collide.
void add_contents(SipHash& hash, const void* data, size_t size) {
  constexpr size_t kSums = 8;
  constexpr size_t kBlock = 16;  // rows between two calls of stir(), which mixes all bits of each sum
  std::array<uint64_t, kSums> sums;
  std::array<uint64_t, kSums> keys;
  for (size_t i = 0; i < kSums; ++i) {
    keys[i] = (kDigestKey0 + i) * 0x9e3779b97f4a7c15ULL ^ kDigestKey1;
    sums[i] = keys[i] * 0xd6e8feb86659fd93ULL;
  }
  const auto* bytes = static_cast<const unsigned char*>(data);
  const auto add_row = [&](const unsigned char* row, uint64_t number) {
    std::array<uint64_t, kSums> words;
    std::memcpy(words.data(), row, sizeof(words));
    for (size_t i = 0; i < kSums; ++i) {
      const uint64_t keyed = words[i] ^ (keys[i] + number * 0xc2b2ae3d27d4eb4fULL);  // makes the order of rows matter
      sums[i] += (keyed & 0xffffffff) * (keyed >> 32) + words[i];
    }
  };
  const auto stir = [&] {
    for (size_t i = 0; i < kSums; ++i) {
      sums[i] = (sums[i] ^ (sums[i] >> 47) ^ keys[i]) * 0x9fb21c651e98df25ULL;
    }
  };
  constexpr size_t kRow = kSums * sizeof(uint64_t);
  size_t left = size;
  for (; left >= kBlock * kRow; left -= kBlock * kRow) {
    for (size_t row = 0; row < kBlock; ++row, bytes += kRow) {
      add_row(bytes, row);
    }
    stir();
  }
  for (; left >= kRow; left -= kRow, bytes += kRow) {
    add_row(bytes, 0);
    stir();
  }
  for (const uint64_t sum : sums) {
    hash.add_number(sum);
  }
  hash.add(std::string_view(reinterpret_cast<const char*>(bytes), left));
}

// Whether a tensor's elements fit in its storage; torch does not ensure that.
bool lies_in_its_storage(const at::Tensor& tensor) {
  if (!tensor.has_storage() || tensor.storage().data() == nullptr) {
    return false;
  }
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size(),
                                          tensor.storage_offset()) <= tensor.storage().nbytes();
}

void add_tensor(SipHash& hash, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    hash.add_number(0);
    return;
  }
  hash.add_number(1 + static_cast<uint64_t>(tensor.scalar_type()));
  hash.add_number(static_cast<uint64_t>(tensor.layout()) << 8 | static_cast<uint64_t>(tensor.device().type()));
  hash.add_number((tensor.is_conj() ? 1 : 0) | (tensor.is_neg() ? 2 : 0));
  if (tensor.is_nested()) {
    return;
  }
  hash.add_number(static_cast<uint64_t>(tensor.dim()));
  for (const int64_t size : tensor.sizes()) {
    hash.add_number(static_cast<uint64_t>(size));
  }
  if (tensor.layout() == c10::kSparse) {
    add_tensor(hash, tensor._indices());
    add_tensor(hash, tensor._values());
  } else if (tensor.layout() == c10::kStrided && tensor.is_cpu() && tensor.numel() > 0 &&
             lies_in_its_storage(tensor)) {
    // The elements in order, independent of strides, so that equal tensors have equal digests.
    const at::Tensor whole = tensor.is_contiguous() ? tensor : tensor.contiguous();
    add_contents(hash, whole.const_data_ptr(), whole.numel() * whole.element_size());
  }
}

// Combines the digest of a payload with the tensors.
uint64_t with_tensors(uint64_t digest, const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) {
    return digest;
  }
  const c10::InferenceMode no_autograd;
  SipHash hash(kDigestKey0, digest);
  for (const at::Tensor& tensor : tensors) {
    add_tensor(hash, tensor);
  }
  return hash.finish();
}

uint64_t digest_of_payload(const InspectedRequest& request) {
  switch (request.type) {
    case MessageType::PYTHON_CALL:
    case MessageType::SCRIPT_CALL:
      return digest(request.payload);
    case MessageType::PYTHON_REMOTE_CALL:
      return digest(python_part(request));
    case MessageType::SCRIPT_REMOTE_CALL: {
      size_t end = 0;
      script_function(request.payload, end);
      return digest(request.payload.substr(0, end));
    }
    default:
      return 0;
  }
}

}  // namespace

// Python pickles PythonUDF(function, arguments, keywords): the first global is PythonUDF, the second is the function.
std::string python_function(std::string_view pickle, size_t& end) {
  PickleScan scan(pickle);
  int globals = 0;
  end = 0;
  for (int i = 0; i < kMostOpcodes; ++i) {
    const auto found = scan.next();
    if (found == PickleScan::Found::kEnd) {
      break;
    }
    if (found == PickleScan::Found::kGlobal && ++globals == 2) {
      end = scan.position();
      return scan.global();
    }
  }
  return {};
}

InspectedRequest inspect(const torch::distributed::rpc::Message& message) {
  InspectedRequest request;
  request.type = message.type();
  request.payload = std::string_view(message.payload().data(), message.payload().size());
  while (is_wrapper(request.type) && take_wrapper(request)) {
  }
  return request;
}

std::string function_of(const InspectedRequest& request) {
  size_t end = 0;
  switch (request.type) {
    case MessageType::PYTHON_CALL:
    case MessageType::PYTHON_REMOTE_CALL:
      return python_function(python_part(request), end);
    case MessageType::SCRIPT_CALL:
    case MessageType::SCRIPT_REMOTE_CALL:
      return script_function(request.payload, end);
    default:
      return {};
  }
}

std::optional<torch::distributed::rpc::ForkId> fork_of(const InspectedRequest& request) {
  if (request.type != MessageType::PYTHON_REMOTE_CALL && request.type != MessageType::SCRIPT_REMOTE_CALL) {
    return std::nullopt;
  }
  // The last integers of the pickle: the worker that created the id, and its count.
  PickleScan scan(request.payload);
  std::array<std::optional<int64_t>, 2> last;
  for (auto found = scan.next(); found != PickleScan::Found::kEnd; found = scan.next()) {
    if (found == PickleScan::Found::kNumber) {
      last = {last[1], scan.number()};
    }
  }
  if (!last[0] || *last[0] < 0 || *last[0] > INT16_MAX) {
    return std::nullopt;
  }
  return torch::distributed::rpc::ForkId(static_cast<torch::distributed::rpc::worker_id_t>(*last[0]), *last[1]);
}

uint64_t digest_of(const InspectedRequest& request, const std::vector<at::Tensor>& tensors) {
  return with_tensors(digest_of_payload(request), tensors);
}

uint64_t full_digest_of(const InspectedRequest& request, const std::vector<at::Tensor>& tensors) {
  return with_tensors(digest(request.payload), tensors);
}

uint64_t tensor_bytes_of(const torch::distributed::rpc::Message& message) {
  uint64_t bytes = 0;
  for (const auto& tensor : message.tensors()) {
    if (tensor.defined() && tensor.layout() == c10::kStrided) {
      bytes += static_cast<uint64_t>(tensor.numel()) * tensor.element_size();
    }
  }
  return bytes;
}

}  // namespace rpc_backends
