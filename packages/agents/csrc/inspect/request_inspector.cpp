#include "inspect/request_inspector.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "base/log.h"
#include "inspect/pickle_scan.h"
#include "inspect/pickled_call.h"
#include "inspect/rref_classes.h"
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

// The pickle of a Python function with its arguments, inside a request.
std::string_view python_part(const InspectedRequest& request) {
  if (request.type == MessageType::PYTHON_CALL) {
    return request.payload.empty() ? request.payload : request.payload.substr(1);
  }
  return remote_call(request.payload);
}

// Returns the function name, which is the last string of a script call; sets `end` to the position after it.
std::string script_function(std::string_view pickle, size_t& end) {
  PickleScan scan(pickle);
  std::string_view last;
  end = 0;
  while (true) {
    const auto token = scan.next();
    if (token == PickleScan::Found::kEnd) {
      break;
    }
    if (token == PickleScan::Found::kText) {
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
  } else if (tensor.layout() == c10::kStrided && tensor.is_cpu() && tensor.numel() > 0 && lies_in_its_storage(tensor)) {
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

InspectedRequest inspect(const torch::distributed::rpc::Message& message) {
  return unwrap(message.type(), {message.payload().data(), message.payload().size()});
}

std::string function_of(const PickledCall& call) {
  return call.method.empty() ? call.function
                             : call.method_of(call.rref ? RRefClasses::instance().of(*call.rref) : std::string());
}

std::optional<RRefId> watch_classes(const torch::distributed::rpc::Message& message) {
  const InspectedRequest request = inspect(message);
  if (request.type == MessageType::PYTHON_CALL) {
    return asked_class(python_part(request));
  }
  if (request.type == MessageType::PYTHON_REMOTE_CALL) {
    std::optional<RRefId> created;
    const PickledCall call = read_call(remote_call(request.payload, &created));
    if (created && !call.created_class.empty()) {
      RRefClasses::instance().learn(*created, call.created_class);
    }
  }
  return std::nullopt;
}

void learn_class(const RRefId& rref, torch::distributed::rpc::JitFuture& answer) {
  contained("while reading the class of an RRef's value", [&] {
    if (!answer.hasError()) {
      const auto message = answer.constValue().toCustomClass<torch::distributed::rpc::Message>();
      RRefClasses::instance().learn(rref, pickled_class({message->payload().data(), message->payload().size()}));
    }
  });
}

std::string function_of(const InspectedRequest& request) {
  size_t end = 0;
  switch (request.type) {
    case MessageType::PYTHON_CALL:
    case MessageType::PYTHON_REMOTE_CALL:
      return function_of(read_call(python_part(request)));
    case MessageType::SCRIPT_CALL:
    case MessageType::SCRIPT_REMOTE_CALL:
      return script_function(request.payload, end);
    default:
      return {};
  }
}

std::optional<CreatedRRef> created_rref(const InspectedRequest& request) {
  namespace rpc = torch::distributed::rpc;
  if (request.type != MessageType::PYTHON_REMOTE_CALL && request.type != MessageType::SCRIPT_REMOTE_CALL) {
    return std::nullopt;
  }
  // The last integers of the pickle: of both ids, the worker that created the id, and its count.
  PickleScan scan(request.payload);
  std::array<std::optional<int64_t>, 4> last;
  for (auto opcode = scan.next(); opcode != PickleScan::Found::kEnd; opcode = scan.next()) {
    if (opcode == PickleScan::Found::kNumber) {
      last = {last[1], last[2], last[3], scan.number()};
    }
  }
  const auto is_worker = [](const std::optional<int64_t>& number) {
    return number && *number >= 0 && *number <= INT16_MAX;
  };
  if (!is_worker(last[0]) || !is_worker(last[2])) {
    return std::nullopt;
  }
  return CreatedRRef{rpc::RRefId(static_cast<rpc::worker_id_t>(*last[0]), *last[1]),
                     rpc::ForkId(static_cast<rpc::worker_id_t>(*last[2]), *last[3])};
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
