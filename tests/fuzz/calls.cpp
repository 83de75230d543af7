// For any bytes, the reader of pickled calls returns names that are short enough and lie in the input, or nothing.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "inspect/pickled_call.h"
#include "seeds.h"

namespace rpc_backends {

namespace {

void run(std::string_view bytes) {
  const PickledCall call = read_call(bytes);
  check(call.end <= bytes.size());
  check(call.function.empty() == (call.end == 0) || call.function == ".");
  check(call.method.size() <= kLongestName && call.created_class.size() <= kLongestName);
  check(bytes.find(call.method) != bytes.npos || call.method == "forward");
  check(pickled_class(bytes).size() <= kLongestName);
  asked_class(bytes);
  std::optional<RRefId> created;
  const std::string_view inner = remote_call(bytes, &created);
  check(inner == remote_call(bytes));
  check(inner.empty() || (inner.data() >= bytes.data() && inner.data() + inner.size() <= bytes.data() + bytes.size()));
  read_call(inner);
}

// The bytes of a literal, with its zeros.
template <size_t kSize>
std::string bytes(const char (&literal)[kSize]) {
  return {literal, kSize - 1};
}

std::string text(std::string_view value) {
  return std::string("\x8c") + static_cast<char>(value.size()) + std::string(value) + "\x94";
}

std::string global(std::string_view module, std::string_view name) {
  return text(module) + text(name) + "\x93\x94";
}

const std::string kRRef = bytes("(K\x00K\x01J\x07\x00\x00\x00K\x00\x8a\x05\x01\x02\x03\x04\x05K\x00") +
                          text("PyObject") + "t\x94\x85\x94R\x94";

// Calls of each kind that torch makes.
std::vector<std::string> all_seeds() {
  const std::string head =
      bytes("\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00") + global("torch.distributed.rpc.internal", "PythonUDF");
  const std::string calls[] = {
      global("train", "update") + "K\x01\x85\x94}\x94\x87\x94\x81\x94.",
      global("torch.distributed.rpc.rref_proxy", "_local_invoke") + "(" + kRRef + text("add") + "K\x01\x85}t\x94.",
      global("torch.distributed.rpc.api", "_rref_typeof_on_owner") + kRRef + "\x85\x94N\x87\x94\x81\x94.",
      global("_remote_module_non_scriptable", "_remote_forward") + "(" + kRRef + text("cpu") + "\x89t}\x87\x81.",
      global("torch.distributed.nn.api.remote_module", "_create_module") + "(" + global("torch.nn", "Linear") + "t.",
  };
  std::vector<std::string> all{bytes("\x80\x04") + global("train", "Learner") + "."};
  for (const std::string& call : calls) {
    const std::string python = head + call;
    std::string remote = bytes("\x80\x02(X") + static_cast<char>(python.size());
    remote += std::string(3, '\0') + python + "q" + bytes("\x00K\x01K\x02\x86q\x01K\x01K\x03\x86q\x02t.");
    all.push_back(python);
    all.push_back(remote);
  }
  return all;
}

}  // namespace

}  // namespace rpc_backends

std::vector<std::string> seeds() {
  return rpc_backends::all_seeds();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rpc_backends::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
