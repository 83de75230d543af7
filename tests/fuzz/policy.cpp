// Whatever the bytes of a request are, a guard policy permits nothing that it does not list, and reads the same from
// them as torch. An input is the type of a request, as an index, and its payload.
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/autograd/rpc_messages/cleanup_autograd_context_req.h>
#include <torch/csrc/distributed/autograd/rpc_messages/propagate_gradients_req.h>
#include <torch/csrc/distributed/autograd/rpc_messages/rpc_with_autograd.h>
#include <torch/csrc/distributed/autograd/rpc_messages/rpc_with_profiling_req.h>
#include <torch/csrc/distributed/autograd/rpc_messages/rref_backward_req.h>
#include <torch/csrc/distributed/rpc/python_remote_call.h>
#include <torch/csrc/distributed/rpc/rref_proto.h>
#include <torch/csrc/distributed/rpc/script_call.h>
#include <torch/csrc/distributed/rpc/script_remote_call.h>
#include <torch/csrc/distributed/rpc/script_resp.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/request_policy.h"
#include "inspect/pickle_limits.h"
#include "inspect/pickle_scan.h"
#include "inspect/script_call.h"
#include "inspect/torch_pickle.h"
#include "inspect/wrapper.h"
#include "rpc_backends_agents/interceptor.h"
#include "seeds.h"

namespace rpc_backends {

namespace {

namespace rpc = torch::distributed::rpc;
namespace autograd = torch::distributed::autograd;

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
                              0x201,  // answers
                              0x203,
                              0x206,
                              0x209,
                              0x20a,
                              0x210,
                              0x216};
constexpr std::string_view kModule = "torch.distributed.rpc.internal";

// What counts RRefs and contexts, which every policy permits. It has no wrapper.
bool is_bookkeeping(int32_t type) {
  return type == kRRefUserDelete || type == kRRefForkRequest || type == kRRefChildAccept ||
         type == kCleanupAutogradContextRequest;
}

RequestPolicy::Rule rule() {
  RequestPolicy::Rule listed;
  listed.peers = {"trainer*"};
  listed.functions = {"train:step"};
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
  (void)nothing.answer_refusal("trainer0", type, payload);
  const InspectedRequest request = unwrap(type, payload);
  check(request.payload.size() <= payload.size());
  const bool is_wrapped = !request.wrappers.empty();
  const bool is_served = is_bookkeeping(type) && !is_wrapped && torch_pickle_problem(payload, PickleLimits{}).empty();
  check(nothing.refusal("trainer0", type, payload).empty() == is_served);
  check(some.refusal("other", type, payload).empty() == is_served);
  check(learning.refusal("trainer0", type, payload).empty());
  const bool is_permitted = some.refusal("trainer0", type, payload).empty();
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

// What torch reads from its own kind of pickle; empty if it or the policy refuses it. What the policy does not refuse
// takes little memory: run.sh limits what the sanitizer's allocator gives.
std::optional<std::vector<c10::IValue>> read_as_torch(std::string_view pickle) {
  if (!torch_pickle_problem(pickle, PickleLimits{}).empty()) {
    return std::nullopt;
  }
  try {
    const auto unknown = [](const c10::QualifiedName&) -> c10::StrongTypePtr { throw std::runtime_error("unknown"); };
    return torch::jit::unpickle(pickle.data(), pickle.size(), unknown).toTupleRef().elements().vec();
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::string text_at(const std::vector<c10::IValue>& values, size_t from_end) {
  return values.size() >= from_end && values[values.size() - from_end].isString()
             ? values[values.size() - from_end].toStringRef()
             : std::string();
}

// What the policy reads from a script call is what torch looks up.
void compare_script_call(std::string_view payload, bool is_remote) {
  const auto callee = read_script_call(payload, is_remote);
  const auto values = callee ? read_as_torch(payload) : std::nullopt;
  if (!values) {
    return;
  }
  const size_t ids = is_remote ? 2 : 0;
  const std::string last = text_at(*values, ids + 1);
  const bool is_operator = last.starts_with("torch.ops.aten.");
  check(callee->is_operator == is_operator);
  const std::string schema = text_at(*values, ids + 2);
  check(callee->name == (is_operator ? schema.substr(0, schema.find('(')) : last));
}

// The type that the policy reads from a wrapper is the one that torch handles.
void compare_wrapper(int32_t type, std::string_view payload) {
  if (type != kForwardAutogradRequest && type != kRunWithProfilingRequest) {
    return;
  }
  const auto wrapper =
      type == kForwardAutogradRequest ? read_autograd_wrapper(payload) : read_profiling_wrapper(payload);
  if (!wrapper) {
    return;
  }
  const size_t size = payload.size() - wrapper->payload.size() - sizeof(uint64_t);
  const auto values = read_as_torch(payload.substr(wrapper->payload.size(), size));
  check(!values || (values->front().isInt() && values->front().toInt() == wrapper->type));
}

// Python's own unpickler reads only calls of what is listed for a peer, and results that name nothing.
void check_quick_way(std::string_view pickle, const PickleReport& report) {
  static RequestPolicy nothing({}, "ps", true, false, -1);
  static RequestPolicy some({rule()}, "ps", true, false, -1);
  check(some.is_decided_result(pickle) == (report.form == PickleReport::Form::kPlain));
  check(!nothing.is_decided_call("trainer0", pickle) && !some.is_decided_call("other", pickle));
  check(some.is_decided_call("trainer0", pickle) ==
        (report.form == PickleReport::Form::kCall && report.function == "train:step" &&
         (pickle.starts_with("\x80\x04") || pickle.starts_with("\x80\x05"))));
}

// Reads the names in a pickle in another way than the check does.
void check_report(std::string_view pickle) {
  const PickleReport report = check_pickle(pickle, PickleLimits{});
  check_quick_way(pickle, report);
  if (!report.problem.empty()) {
    check(report.form == PickleReport::Form::kOther && report.function.empty());
    return;
  }
  std::set<std::string> names;
  PickleScan scan(pickle);
  for (auto kind = scan.next(); kind != PickleScan::Found::kEnd; kind = scan.next()) {
    if (kind == PickleScan::Found::kGlobal) {
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
      std::string with_dots = *names.begin();
      std::replace(with_dots.begin(), with_dots.end(), ':', '.');
      check(with_dots == name);
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

std::string global(std::string_view module, std::string_view name) {
  return text(module) + text(name) + "\x93\x94";
}

std::string in_frame(const std::string& opcodes) {
  return bytes("\x80\x04\x95") + static_cast<char>(opcodes.size() & 0xff) + static_cast<char>(opcodes.size() >> 8) +
         std::string(6, '\0') + opcodes;
}

// Pickles of Python: valid ones, made by torch (policy_pickles.py), and malicious ones.
std::vector<std::string> pickles() {
  const std::string head = global(kModule, "PythonUDF");
  std::vector<std::string> texts = {
      in_frame(head + global("train", "step") + "K\x01\x85\x94}\x94\x87\x94\x81\x94."),
      in_frame(head + global("posix", "system") + text("true") + "\x85\x94}\x94\x87\x94\x81\x94."),
      in_frame(head + global("train", "step") + "0" + global("posix", "system") + text("true") + "\x85}\x87\x81."),
      in_frame(head + global("train", "step") + global("posix", "system") + text("true") + "\x85R\x85}\x87\x81."),
      in_frame("}\x94(" + text("a") + "K\x01" + text("b") + bytes("\x8f(K\x01K\x02\x90N\x85u.")),
  };
  if (const char* const folder = std::getenv("FUZZ_PICKLES")) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      std::ifstream file(entry.path(), std::ios::binary);
      texts.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
  }
  return texts;
}

using MessagePtr = c10::intrusive_ptr<rpc::Message>;

std::string payload_of(const MessagePtr& message) {
  return {message->payload().begin(), message->payload().end()};
}

// A request in a wrapper, and in both.
void add_wrapped(const std::string& payload, rpc::MessageType type, std::vector<std::pair<int32_t, std::string>>& to) {
  const auto message = [&] {
    return c10::make_intrusive<rpc::Message>(std::vector<char>(payload.begin(), payload.end()),
                                             std::vector<at::Tensor>(), type);
  };
  const auto profiled = [&] {
    torch::autograd::profiler::ProfilerConfig config(torch::autograd::profiler::ProfilerState::CPU, true, false);
    return autograd::RpcWithProfilingReq(rpc::RUN_WITH_PROFILING_REQ, message(), std::move(config),
                                         rpc::ProfilingId(1, 5))
        .toMessage();
  };
  const autograd::AutogradMetadata ids(3, 4);
  const rpc::DeviceMap devices{{c10::Device("cuda:0"), c10::Device("cuda:1")}};
  to.emplace_back(kForwardAutogradRequest,
                  payload_of(autograd::RpcWithAutograd(1, rpc::FORWARD_AUTOGRAD_REQ, ids, message()).toMessage()));
  to.emplace_back(
      kForwardAutogradRequest,
      payload_of(autograd::RpcWithAutograd(1, rpc::FORWARD_AUTOGRAD_REQ, ids, message(), devices).toMessage()));
  to.emplace_back(kRunWithProfilingRequest, payload_of(profiled()));
  to.emplace_back(kForwardAutogradRequest,
                  payload_of(autograd::RpcWithAutograd(1, rpc::FORWARD_AUTOGRAD_REQ, ids, profiled()).toMessage()));
}

// Requests as torch writes them: of each type, and in each wrapper.
std::vector<std::pair<int32_t, std::string>> requests() {
  std::vector<std::pair<int32_t, std::string>> messages;
  const rpc::RRefId rref(1, 2);
  const rpc::ForkId fork(1, 3);
  const auto add = [&](int32_t type, const MessagePtr& message) {
    const std::string payload = payload_of(message);
    messages.emplace_back(type, payload);
    add_wrapped(payload, message->type(), messages);
  };
  for (const std::string& pickle : pickles()) {
    const std::string call = std::string(1, '\0') + pickle;
    messages.emplace_back(kPythonCall, call);
    add_wrapped(call, rpc::PYTHON_CALL, messages);
    rpc::SerializedPyObj object(std::string(pickle), {});
    add(kPythonRemoteCall,
        rpc::PythonRemoteCall(std::move(object), rref.toIValue(), fork.toIValue(), false).toMessage());
  }
  const auto operators = torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString("aten::add"));
  for (const auto& each : operators) {
    const std::vector<c10::IValue> stack{1, "a", c10::List<int64_t>({1, 2}), 2.5};
    add(kScriptCall, rpc::ScriptCall(each, std::vector<c10::IValue>(stack)).toMessage());
    add(kScriptRemoteCall, rpc::ScriptRemoteCall(each, std::vector<c10::IValue>(stack), rref, fork).toMessage());
  }
  const auto add_answer = [&](const MessagePtr& message) {
    messages.emplace_back(static_cast<int32_t>(message->type()), payload_of(message));
  };
  add_answer(rpc::ScriptResp(c10::ivalue::Tuple::create({1, "a", 2.5})).toMessage());
  add_answer(rpc::RemoteRet(rref, fork).toMessage());
  add_answer(rpc::ScriptRRefFetchRet({c10::IValue(3)}).toMessage());
  add_answer(rpc::PythonRRefFetchRet({pickles()[0], 1}).toMessage());
  for (const char* const name : {"__torch__.train.scale", "__torch__.train.other"}) {
    add(kScriptCall, rpc::ScriptCall(c10::QualifiedName(name), {1, true}, false).toMessage());
    add(kScriptCall, rpc::ScriptCall(c10::QualifiedName(name), {}, true).toMessage());
    add(kScriptRemoteCall, rpc::ScriptRemoteCall(c10::QualifiedName(name), {1}, rref, fork, false).toMessage());
  }
  add(kScriptRRefFetchCall, rpc::ScriptRRefFetchCall(1, rref).toMessage());
  add(kPythonRRefFetchCall, rpc::PythonRRefFetchCall(1, rref).toMessage());
  add(kRRefUserDelete, rpc::RRefUserDelete(rref, fork).toMessage());
  add(kRRefForkRequest, rpc::RRefForkRequest(rref, fork).toMessage());
  add(kRRefChildAccept, rpc::RRefChildAccept(fork).toMessage());
  const autograd::AutogradMetadata ids(3, 4);
  add(kBackwardAutogradRequest, autograd::PropagateGradientsReq(ids, {}, true).toMessage());
  add(kCleanupAutogradContextRequest, autograd::CleanupAutogradContextReq(3).toMessage());
  add(kRRefBackwardRequest, autograd::RRefBackwardReq(rref, 3, true).toMessage());
  // The schema decides, not the name beside it.
  messages.emplace_back(kScriptCall, bytes("\x80\x02(K\x01X\x19\0\0\0aten::mul.Tensor(Tensor a)X\x12\0\0\0"
                                           "torch.ops.aten.addt."));
  for (const int32_t type : kTypes) {
    messages.emplace_back(type, bytes("\x80\x02(K\x01K\x02K\x03t."));
  }
  return messages;
}

}  // namespace

}  // namespace rpc_backends

std::vector<std::string> seeds() {
  std::vector<std::string> written;
  for (const auto& [type, payload] : rpc_backends::requests()) {
    const auto* const index = std::find(std::begin(rpc_backends::kTypes), std::end(rpc_backends::kTypes), type);
    written.push_back(static_cast<char>(index - std::begin(rpc_backends::kTypes)) + payload);
  }
  return written;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) {
    return 0;
  }
  const std::string_view payload(reinterpret_cast<const char*>(data) + 1, size - 1);
  const int32_t type = rpc_backends::kTypes[data[0] % std::size(rpc_backends::kTypes)];
  rpc_backends::check_decision(type, payload);
  rpc_backends::compare_wrapper(type, payload);
  const auto request = rpc_backends::unwrap(type, payload);
  const auto inner = request.payload;
  if (request.type == rpc_backends::kScriptCall || request.type == rpc_backends::kScriptRemoteCall) {
    rpc_backends::compare_script_call(inner, request.type == rpc_backends::kScriptRemoteCall);
  }
  if (request.type != rpc_backends::kPythonCall) {
    (void)rpc_backends::read_as_torch(inner);
  }
  rpc_backends::check_report(inner);
  rpc_backends::check_report(inner.empty() ? inner : inner.substr(1));
  return 0;
}
