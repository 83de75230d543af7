#include "inspect/pickled_call.h"

#include <algorithm>
#include <array>

#include "inspect/pickle_scan.h"

namespace rpc_backends {

namespace {

using Found = PickleScan::Found;

// Torch's functions that run a method for a caller. All of them get the RRef first.
constexpr std::string_view kInvokes[] = {"torch.distributed.rpc.rref_proxy._local_invoke",
                                         "torch.distributed.rpc.rref_proxy._local_invoke_async_execution"};
constexpr std::string_view kForwards = "_remote_module_non_scriptable._remote_forward";
constexpr std::string_view kCreates = "torch.distributed.nn.api.remote_module._create_module";

// The pickle of an RRef is a tuple: its owner, the two numbers of its id, the two numbers of the id of this reference
// to it, the parent, and the type as a text.
constexpr size_t kNumbersOfRRef = 6;

std::string short_name(std::string_view name) {
  return name.size() > kLongestName ? std::string() : std::string(name);
}

// Finds RRefs among the opcodes of a pickle.
class RRefFinder {
 public:
  // Returns whether the opcode that was read last ends an RRef.
  bool add(Found token, const PickleScan& scan) {
    if (token == Found::kNumber) {
      std::rotate(numbers_.begin(), numbers_.begin() + 1, numbers_.end());
      numbers_.back() = scan.number();
      ++count_;
      return false;
    }
    const bool is_rref = token == Found::kText && count_ >= kNumbersOfRRef;
    count_ = 0;
    return is_rref;
  }
  RRefId id() const { return {numbers_[1], numbers_[2]}; }

 private:
  std::array<int64_t, kNumbersOfRRef> numbers_{};
  size_t count_ = 0;
};

// Reads on, in the arguments.
void read_arguments(PickleScan& scan, PickledCall& call) {
  const bool invokes = std::find(std::begin(kInvokes), std::end(kInvokes), call.function) != std::end(kInvokes);
  const bool forwards = call.function == kForwards;
  const bool creates = call.function == kCreates;
  if (!invokes && !forwards && !creates) {
    return;
  }
  RRefFinder rrefs;
  for (int i = 0; i < kMostOpcodes; ++i) {
    const Found token = scan.next();
    if (token == Found::kEnd) {
      return;
    }
    if (creates && token == Found::kGlobal) {
      call.created_class = short_name(scan.global());
      return;
    }
    if (call.rref && token == Found::kText) {
      call.method = short_name(scan.text());
      return;
    }
    if (!creates && !call.rref && rrefs.add(token, scan)) {
      call.rref = rrefs.id();
      if (forwards) {
        call.method = "forward";
        return;
      }
    }
  }
}

}  // namespace

std::string PickledCall::method_of(const std::string& class_name) const {
  if (!class_name.empty()) {
    return class_name + "." + method;
  }
  return (function == kForwards ? "RemoteModule." : "RRef.") + method;
}

// The first global is PythonUDF, the second is the function.
PickledCall read_call(std::string_view pickle) {
  PickleScan scan(pickle);
  PickledCall call;
  int globals = 0;
  for (int i = 0; i < kMostOpcodes; ++i) {
    const Found token = scan.next();
    if (token == Found::kEnd) {
      break;
    }
    if (token == Found::kGlobal && ++globals == 2) {
      call.function = scan.global();
      call.end = scan.position();
      read_arguments(scan, call);
      break;
    }
  }
  return call;
}

std::optional<RRefId> asked_class(std::string_view pickle) {
  constexpr std::string_view kAsks =
      "\x8c\x1etorch.distributed.rpc.internal\x94\x8c\x09PythonUDF\x94\x93\x94"
      "\x8c\x19torch.distributed.rpc.api\x94\x8c\x15_rref_typeof_on_owner\x94\x93";
  if (!without_frame(pickle).starts_with(kAsks)) {
    return std::nullopt;
  }
  PickleScan scan(pickle);
  RRefFinder rrefs;
  for (int i = 0; i < kMostOpcodes; ++i) {
    const Found token = scan.next();
    if (token == Found::kEnd) {
      break;
    }
    if (rrefs.add(token, scan)) {
      return rrefs.id();
    }
  }
  return std::nullopt;
}

std::string pickled_class(std::string_view pickle) {
  constexpr char kMemoize = '\x94';
  constexpr char kStop = '.';
  PickleScan scan(pickle);
  for (int i = 0; i < kMostOpcodes; ++i) {
    const Found token = scan.next();
    if (token == Found::kGlobal) {
      std::string_view rest = pickle.substr(scan.position());
      if (rest.starts_with(kMemoize)) {
        rest.remove_prefix(1);
      }
      return rest.starts_with(kStop) ? short_name(scan.global()) : std::string();
    }
    if (token != Found::kText && token != Found::kOther) {
      break;
    }
  }
  return {};
}

// Torch pickles a tuple: the pickle from Python as a string, the tensors, and the ids of the RRef and of the caller's
// reference to it.
std::string_view remote_call(std::string_view pickle, std::optional<RRefId>* created) {
  PickleScan scan(pickle);
  std::string_view call;
  std::optional<int64_t> first;
  for (int i = 0; i < kMostOpcodes; ++i) {
    const Found token = scan.next();
    if (token == Found::kEnd) {
      break;
    }
    if (call.empty()) {
      if ((token == Found::kText || token == Found::kBytes) && scan.text().size() > 2 &&
          static_cast<unsigned char>(scan.text()[0]) == 0x80) {
        call = scan.text();
        if (created == nullptr) {
          break;
        }
      }
    } else if (token == Found::kNumber) {
      if (first) {
        *created = RRefId{*first, scan.number()};
        break;
      }
      first = scan.number();
    } else if (first) {
      first.reset();
    }
  }
  return call;
}

}  // namespace rpc_backends
