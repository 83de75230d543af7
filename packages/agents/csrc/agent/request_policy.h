// Which requests of which workers this worker serves. The decision is made from the bytes of a request, before any of
// it is unpickled. A function in Python is decided again, in Python, when its pickle was read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "inspect/pickle_limits.h"
#include "rpc_backends_agents/fd.h"

namespace rpc_backends {

class RequestPolicy {
 public:
  // What some workers may ask for.
  struct Rule {
    std::vector<std::string> peers;        // names of workers, in which * stands for any characters
    std::vector<std::string> functions;    // MODULE:QUALNAME
    std::vector<std::string> conditional;  // functions that Python permits by their arguments
    std::vector<std::string> operators;    // NAMESPACE::NAME for all overloads, or NAMESPACE::NAME.OVERLOAD
    std::vector<std::string> scripts;      // qualified names of TorchScript functions
    bool fetch = false;                    // values of RRefs
    bool autograd = false;                 // calls in a context of distributed autograd, and its backward passes
    bool profiling = false;                // calls that switch a profiler on
  };

  // `refuses`: false to serve also what no rule permits, and only to write it to the log. `log`: a descriptor of a file
  // opened for appending, or -1. `learns`: writes each thing that a worker asks for once. `limits`: of the pickles that
  // torch reads in C++.
  RequestPolicy(const std::vector<Rule>& rules, std::string worker, bool refuses, bool learns, int log,
                const PickleLimits& limits = {});

  // The reason why a request of `peer` is not served; empty if it is. `type`: torch's number. Any thread may call it.
  std::string refusal(const std::string& peer, int32_t type, std::string_view payload);
  // The reason why an answer of `peer` is not read; empty if it is. Python decides what its unpickler reads.
  std::string answer_refusal(const std::string& peer, int32_t type, std::string_view payload);

  // The numbers of the rules for a worker.
  std::vector<size_t> rules_for(const std::string& peer) const;
  // What would harm a process that unpickles a pickle of Python, see check_pickle(); empty for nothing.
  std::string pickle_problem(std::string_view pickle) const;
  // Whether nothing is left to decide about the pickle of a call of `peer`: it names and calls nothing but one listed
  // function, in torch's form of a call.
  bool is_decided_call(const std::string& peer, std::string_view pickle);
  // The same of the pickle of a result: it consists of plain values and tensors.
  bool is_decided_result(std::string_view pickle) const;

  uint64_t refused() const { return refused_; }

 private:
  using Names = std::unordered_set<std::string>;
  // The rules for one worker, together.
  struct Permitted {
    Names functions, conditional, operators, scripts;
    bool fetch = false, autograd = false, profiling = false;
  };
  // What a request asks for.
  struct Asked {
    std::string_view kind;  // of a rule's entry
    std::string name;
  };

  std::shared_ptr<const Permitted> permitted(const std::string& peer);
  // The first thing in a request that is not permitted; empty if there is none.
  std::optional<Asked> find_unlisted(const std::string& peer, int32_t type, std::string_view payload);
  // Writes to the log what is not listed. Returns whether it is refused.
  bool refuse(const std::string& peer, const Asked& asked);
  void note(const std::string& peer, const Asked& asked);
  void write(std::string_view event, const std::string& peer, const Asked& asked) const;

  const std::vector<Rule> rules_;
  const std::string worker_;
  const bool refuses_, learns_;
  const PickleLimits limits_;
  const std::unique_ptr<const Fd> log_;  // null without a log
  std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<const Permitted>> by_peer_;
  Names noted_;
  std::atomic<uint64_t> refused_{0};
};

// Entries of the audit log, as JSON, for a reader in this process such as OpenTelemetry's. Without a reader it keeps
// none.
class AuditEntries {
 public:
  static AuditEntries& of_process();

  // From now on, keeps entries until they are taken.
  void keep() { keeps_ = true; }
  bool keeps() const { return keeps_; }
  // Keeps an entry, unless too many wait; take() then says how many are missing.
  void add(const std::string& entry);
  std::vector<std::string> take();

 private:
  std::atomic<bool> keeps_{false};
  std::mutex mutex_;
  std::vector<std::string> entries_;
  uint64_t missing_ = 0;
};

// While it exists, this thread serves a request of another worker. The Python code that unpickles the request asks for
// the worker.
class ServedRequest {
 public:
  // `caller`: the name of the worker, empty for this worker's own requests; null if there is no policy. `is_python`:
  // whether the request is a call of a Python function.
  ServedRequest(const std::string* caller, bool is_python);
  ~ServedRequest();
  ServedRequest(const ServedRequest&) = delete;
  ServedRequest& operator=(const ServedRequest&) = delete;

  // The worker whose call this thread unpickles now; an empty name for this worker itself. Each request gives it once:
  // what the called function unpickles, such as results of its own calls, comes from others.
  static std::optional<std::string> take();

 private:
  const std::string* const before_;
};

}  // namespace rpc_backends
