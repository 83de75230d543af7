#include "agent/request_policy.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "base/text.h"
#include "inspect/pickle_scan.h"
#include "inspect/pickled_call.h"
#include "inspect/script_call.h"
#include "inspect/torch_pickle.h"
#include "inspect/wrapper.h"
#include "record/json.h"
#include "rpc_backends_agents/interceptor.h"

namespace rpc_backends {

namespace {

// The longest text of a peer that an error or the log repeats.
constexpr size_t kLongestText = 512;
// The most different things that learning remembers.
constexpr size_t kMostNoted = 65536;
// The most entries of the audit log that wait for a reader in this process.
constexpr size_t kMostEntries = 1000;
// The class whose methods are pickled for functions of the module torch.
constexpr std::string_view kFunctionsOfTorch = "torch._C:_VariableFunctionsClass";
constexpr std::string_view kUnreadable = "(cannot be read)";

// `pattern`: a name in which * stands for any characters.
bool matches(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) {
    return pattern == name;
  }
  if (!name.starts_with(pattern.substr(0, star))) {
    return false;
  }
  const std::string_view rest = pattern.substr(star + 1);
  for (size_t at = star; at <= name.size(); ++at) {
    if (matches(rest, name.substr(at))) {
      return true;
    }
  }
  return false;
}

std::string cut(std::string_view text) {
  return valid_utf8(text.substr(0, kLongestText));
}

// A text of up to 255 bytes that is kept in the memo; takes it off the pickle.
bool take_short_text(std::string_view& pickle, std::string_view& text) {
  if (pickle.size() < 3 || pickle[0] != '\x8c') {
    return false;
  }
  const size_t size = static_cast<unsigned char>(pickle[1]);
  if (pickle.size() < size + 3 || pickle[size + 2] != '\x94') {
    return false;
  }
  text = pickle.substr(2, size);
  pickle.remove_prefix(size + 3);
  return true;
}

// Whether a pickle has the default protocol of a Python from 3.11 on. Older protocols write and read names in other
// ways.
bool has_known_protocol(std::string_view pickle) {
  return pickle.starts_with("\x80\x04") || pickle.starts_with("\x80\x05");
}

std::string joined(std::string_view module, char between, std::string_view name) {
  std::string text;
  text.reserve(module.size() + 1 + name.size());
  return text.append(module).append(1, between).append(name);
}

// The function that the pickle of a call names, as MODULE:QUALNAME. A class's method, and each function of the module
// torch, is pickled as a call of getattr().
std::string called_function(std::string_view pickle) {
  // As Python writes most calls.
  constexpr std::string_view kHead = "\x8c\x1etorch.distributed.rpc.internal\x94\x8c\x09PythonUDF\x94\x93\x94";
  std::string_view rest = without_frame(pickle);
  std::string_view module;
  std::string_view name;
  if (!has_known_protocol(pickle)) {
    return {};
  }
  if (rest.starts_with(kHead)) {
    rest.remove_prefix(kHead.size());
    if (take_short_text(rest, module) && take_short_text(rest, name) && rest.starts_with('\x93') &&
        (module != "builtins" || name != "getattr")) {
      return joined(module, ':', name);
    }
  }
  PickleScan scan(pickle);
  std::string function;
  int globals = 0;
  for (int i = 0; i < kMostOpcodes; ++i) {
    const auto token = scan.next();
    if (token == PickleScan::Found::kEnd) {
      return {};
    }
    if (token == PickleScan::Found::kGlobal) {
      ++globals;
      if (globals == 1 && scan.global() != "torch.distributed.rpc.internal.PythonUDF") {
        return {};
      }
      function = scan.global();
      if (globals == 3 || (globals == 2 && function != "builtins.getattr")) {
        function[scan.module().size()] = ':';
        break;
      }
    }
  }
  if (globals < 2) {
    return {};
  }
  if (globals == 2) {
    return function;
  }
  for (int i = 0; i < 4; ++i) {  // the attribute's name follows the class
    const auto token = scan.next();
    if (token == PickleScan::Found::kText) {
      return function == kFunctionsOfTorch ? joined("torch", ':', scan.text()) : joined(function, '.', scan.text());
    }
    if (token != PickleScan::Found::kOther) {
      break;
    }
  }
  return {};
}

// Torch's numbers of the answers that it reads from pickles in C++.
enum AnswerType : int32_t {
  kScriptReturn = 0x201,
  kRemoteReturn = 0x206,
  kScriptRRefFetchReturn = 0x209,
  kPythonRRefFetchReturn = 0x20a,
  kForwardAutogradAnswer = 0x210,
  kProfilingAnswer = 0x216,
};

// What would harm the caller that reads an answer; empty if there is nothing. Torch puts an answer in one wrapper of
// each kind at most.
std::string answer_problem(int32_t type, std::string_view payload, const PickleLimits& limits) {
  for (int wrappers = 0; type == kForwardAutogradAnswer || type == kProfilingAnswer; ++wrappers) {
    const auto wrapper =
        type == kForwardAutogradAnswer ? read_autograd_wrapper(payload) : read_profiling_answer(payload);
    if (!wrapper || wrappers == 2) {
      return "the wrapper of its answer has another form than torch's";
    }
    std::string problem = torch_pickle_problem(wrapper->pickle, limits);
    if (!problem.empty()) {
      return problem;
    }
    type = wrapper->type;
    payload = wrapper->payload;
  }
  const bool is_pickle = type == kScriptReturn || type == kRemoteReturn || type == kScriptRRefFetchReturn ||
                         type == kPythonRRefFetchReturn;
  return is_pickle ? torch_pickle_problem(payload, limits) : std::string();
}

std::string_view python_pickle(const InspectedRequest& request) {
  if (request.type == kPythonRemoteCall) {
    return remote_call(request.payload);
  }
  return request.payload.empty() ? request.payload : request.payload.substr(1);
}

}  // namespace

RequestPolicy::RequestPolicy(const std::vector<Rule>& rules, std::string worker, bool refuses, bool learns, int log,
                             const PickleLimits& limits)
    : rules_(rules),
      worker_(std::move(worker)),
      refuses_(refuses),
      learns_(learns),
      limits_(limits),
      log_(log < 0 ? nullptr : std::make_unique<const Fd>(log)) {}

std::vector<size_t> RequestPolicy::rules_for(const std::string& peer) const {
  std::vector<size_t> numbers;
  for (size_t i = 0; i < rules_.size(); ++i) {
    bool applies = false;
    for (const std::string& pattern : rules_[i].peers) {
      applies = applies || matches(pattern, peer);
    }
    if (applies) {
      numbers.push_back(i);
    }
  }
  return numbers;
}

std::shared_ptr<const RequestPolicy::Permitted> RequestPolicy::permitted(const std::string& peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& known = by_peer_[peer];
  if (!known) {
    auto all = std::make_shared<Permitted>();
    for (const size_t number : rules_for(peer)) {
      const Rule& rule = rules_[number];
      all->functions.insert(rule.functions.begin(), rule.functions.end());
      all->conditional.insert(rule.conditional.begin(), rule.conditional.end());
      all->operators.insert(rule.operators.begin(), rule.operators.end());
      all->scripts.insert(rule.scripts.begin(), rule.scripts.end());
      all->fetch = all->fetch || rule.fetch;
      all->autograd = all->autograd || rule.autograd;
      all->profiling = all->profiling || rule.profiling;
    }
    known = std::move(all);
  }
  return known;
}

std::optional<RequestPolicy::Asked> RequestPolicy::find_unlisted(const std::string& peer, int32_t type,
                                                                 std::string_view payload) {
  const auto rules = permitted(peer);
  const auto check = [&](std::string_view kind, std::string_view name, bool is_permitted) -> std::optional<Asked> {
    if (learns_) {
      note(peer, {kind, cut(name)});
    }
    return is_permitted || learns_ ? std::nullopt : std::optional(Asked{kind, cut(name)});
  };
  const InspectedRequest request = unwrap(type, payload);
  for (const int32_t wrapper : request.wrappers) {
    const bool is_autograd = wrapper == kForwardAutogradRequest;
    if (auto asked = check("requests", is_autograd ? "autograd" : "profiling",
                           is_autograd ? rules->autograd : rules->profiling)) {
      return asked;
    }
  }
  // Torch puts a request in one wrapper of each kind at most. Another form is left in place.
  if (request.wrappers.size() > 2 || (request.wrappers.size() == 2 && request.wrappers[0] == request.wrappers[1]) ||
      request.type == kForwardAutogradRequest || request.type == kRunWithProfilingRequest) {
    return check("requests", "a wrapper in another form than torch's", false);
  }
  if (request.type != kPythonCall) {  // torch reads it in C++
    const std::string problem = torch_pickle_problem(request.payload, limits_);
    if (!problem.empty()) {
      return check("message", problem, false);
    }
  }
  switch (request.type) {
    case kPythonCall:
    case kPythonRemoteCall: {
      if (learns_ || !refuses_) {
        return std::nullopt;  // Python notes the module and the qualified name, and unpickles the call in any case
      }
      const std::string function = called_function(python_pickle(request));
      return check("functions", function.empty() ? kUnreadable : std::string_view(function),
                   rules->functions.count(function) != 0 || rules->conditional.count(function) != 0);
    }
    case kScriptCall:
    case kScriptRemoteCall: {
      const auto callee = read_script_call(request.payload, request.type == kScriptRemoteCall);
      if (!callee) {
        return check("scripts", kUnreadable, false);
      }
      if (!callee->is_operator) {
        return check("scripts", callee->name, rules->scripts.count(callee->name) != 0);
      }
      const std::string any_overload = callee->name.substr(0, callee->name.find('.'));
      return check("operators", callee->name,
                   rules->operators.count(callee->name) != 0 || rules->operators.count(any_overload) != 0);
    }
    case kScriptRRefFetchCall:
    case kPythonRRefFetchCall:
      return check("requests", "fetch", rules->fetch);
    case kBackwardAutogradRequest:
    case kRRefBackwardRequest:
      return check("requests", "autograd", rules->autograd);
    // What torch counts RRefs and contexts with. It runs nothing that the sender chooses.
    case kRRefUserDelete:
    case kRRefForkRequest:
    case kRRefChildAccept:
    case kCleanupAutogradContextRequest:
      return std::nullopt;
    default:
      return check("requests", "an unknown request, number " + std::to_string(request.type), false);
  }
}

std::string RequestPolicy::refusal(const std::string& peer, int32_t type, std::string_view payload) {
  const auto asked = find_unlisted(peer, type, payload);
  if (!asked || !refuse(peer, *asked)) {
    return {};
  }
  if (asked->kind == "message") {
    return "worker '" + worker_ + "' refuses a request of '" + peer + "', by its guard policy: " + asked->name;
  }
  return "worker '" + worker_ + "' refuses a request of '" + peer + "': its guard policy does not list '" +
         asked->name + "' in `" + std::string(asked->kind) + "` of a rule for '" + peer + "'";
}

std::string RequestPolicy::answer_refusal(const std::string& peer, int32_t type, std::string_view payload) {
  if (learns_) {
    return {};
  }
  const Asked asked{"message", answer_problem(type, payload, limits_)};
  return asked.name.empty() || !refuse(peer, asked) ? std::string() : "its guard policy: " + asked.name;
}

std::string RequestPolicy::pickle_problem(std::string_view pickle) const {
  return check_pickle(pickle, limits_).problem;
}

bool RequestPolicy::is_decided_call(const std::string& peer, std::string_view pickle) {
  const PickleReport report = check_pickle(pickle, limits_);
  return report.form == PickleReport::Form::kCall && has_known_protocol(pickle) &&
         permitted(peer)->functions.count(report.function) != 0;
}

bool RequestPolicy::is_decided_result(std::string_view pickle) const {
  return check_pickle(pickle, limits_).form == PickleReport::Form::kPlain;
}

bool RequestPolicy::refuse(const std::string& peer, const Asked& asked) {
  write(refuses_ ? "refused" : "would refuse", peer, asked);
  refused_ += refuses_ ? 1 : 0;
  return refuses_;
}

void RequestPolicy::note(const std::string& peer, const Asked& asked) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (noted_.size() >= kMostNoted || !noted_.insert(peer + "\n" + std::string(asked.kind) + asked.name).second) {
      return;
    }
  }
  write("seen", peer, asked);
}

void RequestPolicy::write(std::string_view event, const std::string& peer, const Asked& asked) const {
  const bool is_read = !learns_ && AuditEntries::of_process().keeps();
  if (!log_ && !is_read) {
    return;
  }
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  Json json;
  json.begin('{')
      .field("event", event)
      .field("worker", worker_)
      .field("peer", peer)
      .field("kind", asked.kind)
      .field("name", asked.name)
      .field("time_ms", static_cast<int64_t>(now.count() * 1000))
      .end('}');
  if (is_read) {
    AuditEntries::of_process().add(json.text());
  }
  if (log_) {
    const std::string line = json.text() + "\n";
    [[maybe_unused]] const ssize_t written = ::write(log_->get(), line.data(), line.size());
  }
}

AuditEntries& AuditEntries::of_process() {
  static auto* const entries = new AuditEntries;  // threads may add to it while the process exits
  return *entries;
}

void AuditEntries::add(const std::string& entry) {
  if (!keeps_) {
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (entries_.size() >= kMostEntries) {
    ++missing_;
    return;
  }
  entries_.push_back(entry);
}

std::vector<std::string> AuditEntries::take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::string> taken = std::exchange(entries_, {});
  if (missing_ > 0) {
    Json json;
    json.begin('{').field("event", "missing").field("count", static_cast<int64_t>(missing_)).end('}');
    taken.push_back(json.text());
    missing_ = 0;
  }
  return taken;
}

// --- the request that a thread serves -----------------------------------------------------------------

namespace {

// Whose call this thread unpickles; null if it does not, or the name has been taken.
thread_local const std::string* caller_of_thread = nullptr;

}  // namespace

ServedRequest::ServedRequest(const std::string* caller, bool is_python)
    : before_(std::exchange(caller_of_thread, is_python ? caller : nullptr)) {}

ServedRequest::~ServedRequest() {
  caller_of_thread = before_;
}

std::optional<std::string> ServedRequest::take() {
  const std::string* const caller = std::exchange(caller_of_thread, nullptr);
  return caller == nullptr ? std::nullopt : std::optional(*caller);
}

}  // namespace rpc_backends
