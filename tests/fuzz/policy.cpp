// Whatever the bytes of a request are, a guard policy permits nothing that it does not list. An input is the type of a
// request, as an index, and its payload.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>

#include "agent/request_policy.h"
#include "inspect/pickle_limits.h"
#include "inspect/pickle_scan.h"
#include "inspect/wrapper.h"
#include "rpc_backends_agents/interceptor.h"

namespace rpc_backends {

namespace {

constexpr int32_t kTypes[] = {kPythonCall,
                              kPythonRemoteCall,
                              kScriptCall,
                              kScriptRemoteCall,
                              kScriptRRefFetchCall,
                              kPythonRRefFetchCall,
                              kRRefUserDelete,
                              kRRefForkRequest,
                              kRRefChildAccept,
                              kForwardAutogradRequest,
                              kBackwardAutogradRequest,
                              kCleanupAutogradContextRequest,
                              kRunWithProfilingRequest,
                              kRRefBackwardRequest,
                              0,
                              0x201};
constexpr std::string_view kModule = "torch.distributed.rpc.internal";

void check(bool holds) {
  if (!holds) {
    std::abort();
  }
}

// What counts RRefs and contexts, which every policy permits. It has no wrapper.
bool is_bookkeeping(int32_t type) {
  return type == kRRefUserDelete || type == kRRefForkRequest || type == kRRefChildAccept ||
         type == kCleanupAutogradContextRequest;
}

RequestPolicy::Rule rule() {
  RequestPolicy::Rule listed;
  listed.peers = {"trainer*"};
  listed.functions = {"train.step"};
  listed.operators = {"aten::add.Tensor"};
  listed.scripts = {"__torch__.train.scale"};
  return listed;
}

bool holds(std::string_view bytes, std::string_view text) {
  return bytes.find(text) != std::string_view::npos;
}

void check_decision(int32_t type, std::string_view payload) {
  static RequestPolicy nothing({}, "ps", true, false, -1);
  static RequestPolicy some({rule()}, "ps", true, false, -1);
  static RequestPolicy learning({}, "ps", false, true, -1);
  const InspectedRequest request = unwrap(type, payload);
  check(request.payload.size() <= payload.size());
  const bool is_wrapped = !request.wrappers.empty();
  check(nothing.refusal("trainer0", type, payload).empty() == (is_bookkeeping(type) && !is_wrapped));
  check(some.refusal("other", type, payload).empty() == (is_bookkeeping(type) && !is_wrapped));
  check(learning.refusal("trainer0", type, payload).empty());
  const bool is_permitted = some.refusal("trainer0", type, payload).empty();
  check(is_permitted == some.refusal("trainer0", type, payload).empty());
  if (!is_permitted || is_bookkeeping(type)) {
    return;
  }
  check(!is_wrapped);  // neither autograd nor profiling is listed
  switch (type) {
    case kPythonCall:
    case kPythonRemoteCall:
      check(holds(payload, "train") && holds(payload, "step") && holds(payload, "PythonUDF"));
      return;
    case kScriptCall:
    case kScriptRemoteCall:
      check(holds(payload, "__torch__.train.scale") ||
            (holds(payload, "aten::add.Tensor(") && holds(payload, "torch.ops.aten.")));
      return;
    default:
      check(false);
  }
}

// Reads the names in a pickle in another way than the check does.
void check_report(std::string_view pickle) {
  const PickleReport report = check_pickle(pickle, PickleLimits{});
  if (!report.problem.empty()) {
    check(report.form == PickleReport::Form::kOther && report.function.empty());
    return;
  }
  std::set<std::string> names;
  PickleScan scan(pickle);
  for (auto found = scan.next(); found != PickleScan::Found::kEnd; found = scan.next()) {
    if (found == PickleScan::Found::kGlobal) {
      names.insert(scan.global());
    }
  }
  for (const char* own : {"PythonUDF", "_InternalRPCPickler"}) {
    names.erase(std::string(kModule) + "." + own);
  }
  names.erase("builtins.getattr");
  switch (report.form) {
    case PickleReport::Form::kPlain:
      check(names.empty() && report.function.empty());
      return;
    case PickleReport::Form::kCall: {
      std::string name = report.function;
      std::replace(name.begin(), name.end(), ':', '.');  // a name of a peer may have others
      check(names.size() == 1);
      std::string other = *names.begin();
      std::replace(other.begin(), other.end(), ':', '.');
      check(other == name);
      return;
    }
    case PickleReport::Form::kOther:
      return;
  }
}

// The bytes of a literal, with its zeros.
template <size_t kSize>
std::string bytes(const char (&literal)[kSize]) {
  return {literal, kSize - 1};
}

std::string text(std::string_view value) {
  return std::string("\x8c") + static_cast<char>(value.size()) + std::string(value) + "\x94";
}

std::string long_text(std::string_view value) {
  return "X" + std::string(1, static_cast<char>(value.size())) + std::string(3, '\0') + std::string(value);
}

std::string global(std::string_view module, std::string_view name) {
  return text(module) + text(name) + "\x93\x94";
}

std::string in_frame(const std::string& opcodes) {
  return bytes("\x80\x04\x95") + static_cast<char>(opcodes.size() & 0xff) + static_cast<char>(opcodes.size() >> 8) +
         std::string(6, '\0') + opcodes;
}

std::string wrapped(const std::string& payload, const std::string& pickle) {
  return payload + pickle + std::string(7, '\0') + static_cast<char>(pickle.size());
}

// Requests as torch writes them, of each type and with each wrapper, and malicious ones.
void write_seeds(const char* folder) {
  std::filesystem::create_directories(folder);
  int number = 0;
  const auto write = [&](int32_t type, const std::string& payload) {
    char index = 0;
    while (kTypes[static_cast<int>(index)] != type) {
      ++index;
    }
    std::ofstream(std::string(folder) + "/seed" + std::to_string(number++), std::ios::binary) << index << payload;
  };
  const std::string tag = bytes("ctorch.jit._pickle\nrestore_type_tag\nq\x00");
  const auto autograd = [&](const std::string& type) {
    return bytes("\x80\x02(") + type + "K\x03K\x04K\x01" + tag + "}(u" + long_text("Dict[str, str]") +
           bytes("q\x01\x86Rq\x02t.");
  };
  const auto profiling = [&](const std::string& type) {
    return bytes("\x80\x02") + type + tag + bytes("](K\x01\x88\x89") + "e" + long_text("List[Any]") +
           bytes("q\x01\x86RK\x00K\x01\x86\x87.");
  };
  const std::string head = global(kModule, "PythonUDF");
  const std::string tensor = global("builtins", "getattr") + global(kModule, "_InternalRPCPickler") +
                             text("_tensor_receiver") + bytes("\x86\x94R\x94K\x00\x85\x94R\x94");
  const std::string pickles[] = {
      in_frame(head + global("train", "step") + "K\x01\x85\x94}\x94\x87\x94\x81\x94."),
      in_frame(head + global("train", "step") + tensor + "\x85\x94}\x94\x87\x94\x81\x94."),
      in_frame(head + global("train", "step") + "]\x94(K\x01K\x02" + bytes("e\x85\x94}\x94") + text("lr") +
               bytes("G\x3f\xf0\x00\x00\x00\x00\x00\x00s\x87\x94\x81\x94.")),
      in_frame(head + global("posix", "system") + text("true") + "\x85\x94}\x94\x87\x94\x81\x94."),
      in_frame(head + global("train", "step") + "0" + global("posix", "system") + text("true") + "\x85}\x87\x81."),
      in_frame(head + global("train", "step") + global("posix", "system") + text("true") + "\x85R\x85}\x87\x81."),
      in_frame(head + global("builtins", "getattr") + global("train", "Model") + text("forward") + "\x86R)}\x87\x81."),
      in_frame("}\x94(" + text("a") + "K\x01" + text("b") + bytes("\x8f(K\x01K\x02\x90N\x85u.")),
  };
  for (const std::string& python : pickles) {
    const std::string call = std::string(1, '\0') + python;
    write(kPythonCall, call);
    std::string remote = bytes("\x80\x02(X") + static_cast<char>(python.size() & 0xff) +
                         static_cast<char>(python.size() >> 8) + std::string(2, '\0') + python;
    remote += bytes("q\x00K\x01K\x02\x86q\x01K\x01K\x03\x86q\x02t.");
    write(kPythonRemoteCall, remote);
    write(kForwardAutogradRequest, wrapped(call, autograd("M\x02\x01")));
    write(kForwardAutogradRequest, wrapped(remote, autograd("M\x05\x01")));
    write(kRunWithProfilingRequest, wrapped(call, profiling("M\x02\x01")));
    write(kForwardAutogradRequest, wrapped(wrapped(call, profiling("M\x02\x01")), autograd("M\x15\x01")));
  }
  const std::string add = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor";
  const std::string mul = "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor";
  const std::string scripts[] = {
      bytes("\x80\x02(K\x01K\x02") + long_text(add) + bytes("q\x00") + long_text("torch.ops.aten.add") + "t.",
      bytes("\x80\x02(K\x01K\x02") + long_text(mul) + bytes("q\x00") + long_text("torch.ops.aten.add") + "t.",
      bytes("\x80\x02(K\x01\x89") + long_text("__torch__.train.scale") + "t.",
      bytes("\x80\x02(K\x01\x88") + long_text("__torch__.train.other") + "t.",
  };
  for (const std::string& script : scripts) {
    write(kScriptCall, script);
    write(kScriptRemoteCall, script.substr(0, script.size() - 2) + bytes("K\x01K\x02\x86K\x01K\x03\x86t."));
    write(kForwardAutogradRequest, wrapped(script, autograd(bytes("M\x00\x01"))));
  }
  for (const int32_t type : kTypes) {
    write(type, bytes("\x80\x02(K\x01K\x02K\x03t."));
  }
}

}  // namespace

}  // namespace rpc_backends

extern "C" int LLVMFuzzerInitialize(int* /*count*/, char*** /*arguments*/) {
  if (const char* const folder = std::getenv("FUZZ_WRITE_SEEDS")) {
    rpc_backends::write_seeds(folder);
    std::exit(0);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) {
    return 0;
  }
  const std::string_view payload(reinterpret_cast<const char*>(data) + 1, size - 1);
  const int32_t type = rpc_backends::kTypes[data[0] % std::size(rpc_backends::kTypes)];
  rpc_backends::check_decision(type, payload);
  const auto inner = rpc_backends::unwrap(type, payload).payload;
  rpc_backends::check_report(inner);
  rpc_backends::check_report(inner.empty() ? inner : inner.substr(1));
  return 0;
}
