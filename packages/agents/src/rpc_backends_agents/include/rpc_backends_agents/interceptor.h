// The seam in front of every agent, for fault injection, tracing and policies.
//
// An interceptor is shown each request on its way: those that this worker sends, and those that arrive if the
// agent is a TransportAgent. It decides each request once, at once or later: it passes it on, repeats it, answers
// it, drops it or fails it. If it asks to, it is also shown the answer, and told when the call is over.
//
// Several interceptors stand in a row, ordered by a number: the lowest is nearest to the program. A request that
// is sent passes them from the lowest to the highest, one that arrives from the highest to the lowest; answers go
// the other way. docs/how-to/write-an-interceptor.md is the tutorial.
//
// This header needs C++17 and nothing of torch. All methods are called on many threads at once, unless it says
// otherwise, on threads that hold locks of torch's: they must neither wait nor take the GIL.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rpc_backends {

// An extension module hands its interceptor to rpc_backends_agents.intercept() as an object with a method
// __rpc_interceptor__(), which returns a capsule of this name that holds a std::shared_ptr<Interceptor>*. The
// number goes up with every change of this header that old code would not survive.
inline constexpr const char* kInterceptorCapsule = "rpc_backends.Interceptor.1";

// What one interceptor may attach to a request, and all of them together, with their names and two bytes each.
inline constexpr size_t kMaxContextBytes = 255;
inline constexpr size_t kMaxAllContextBytes = 1024;
inline constexpr size_t kMaxInterceptorName = 63;

enum class Direction { kOutgoing, kIncoming };

// Torch's numbers of requests and answers (torch::distributed::rpc::MessageType).
enum RequestType : int32_t {
  kScriptCall = 0x100,
  kPythonCall = 0x102,
  kScriptRemoteCall = 0x104,
  kPythonRemoteCall = 0x105,
  kScriptRRefFetchCall = 0x107,
  kPythonRRefFetchCall = 0x108,
  kRRefUserDelete = 0x10b,
  kRRefForkRequest = 0x10c,
  kRRefChildAccept = 0x10d,
  kForwardAutogradRequest = 0x10f,
  kBackwardAutogradRequest = 0x111,
  kCleanupAutogradContextRequest = 0x113,
  kRunWithProfilingRequest = 0x115,
  kRRefBackwardRequest = 0x117,
};

// Torch's name of a type of request.
inline const char* type_name(int32_t type) {
  switch (type) {
    case kScriptCall:
      return "SCRIPT_CALL";
    case kPythonCall:
      return "PYTHON_CALL";
    case kScriptRemoteCall:
      return "SCRIPT_REMOTE_CALL";
    case kPythonRemoteCall:
      return "PYTHON_REMOTE_CALL";
    case kScriptRRefFetchCall:
      return "SCRIPT_RREF_FETCH_CALL";
    case kPythonRRefFetchCall:
      return "PYTHON_RREF_FETCH_CALL";
    case kRRefUserDelete:
      return "RREF_USER_DELETE";
    case kRRefForkRequest:
      return "RREF_FORK_REQUEST";
    case kRRefChildAccept:
      return "RREF_CHILD_ACCEPT";
    case kForwardAutogradRequest:
      return "FORWARD_AUTOGRAD_REQ";
    case kBackwardAutogradRequest:
      return "BACKWARD_AUTOGRAD_REQ";
    case kCleanupAutogradContextRequest:
      return "CLEANUP_AUTOGRAD_CONTEXT_REQ";
    case kRunWithProfilingRequest:
      return "RUN_WITH_PROFILING_REQ";
    case kRRefBackwardRequest:
      return "RREF_BACKWARD_REQ";
    default:
      return "UNKNOWN";
  }
}

// Whether requests of a type call a function.
inline bool calls_function(int32_t type) {
  return type == kPythonCall || type == kPythonRemoteCall || type == kScriptCall || type == kScriptRemoteCall;
}

// Torch's kinds of errors, which rpc.api._get_error_type or a program may look for.
enum class ErrorKind { kOther = 0, kTimeout = 1, kIntentional = 2 };

// What a request is, read from its bytes; nothing is unpickled. What costs time to read is read when it is asked
// for, which is possible until the request is passed on; std::logic_error afterwards.
class RequestHead {
 public:
  virtual ~RequestHead() = default;

  virtual Direction direction() const = 0;
  // Its type, and the types that torch has wrapped around it (autograd, profiling), the outermost first.
  virtual int32_t type() const = 0;
  virtual const std::vector<int32_t>& wrappers() const = 0;
  // The other worker. The name is empty if that of a sender is not known.
  virtual int peer_id() const = 0;
  virtual const std::string& peer() const = 0;
  // This worker.
  virtual const std::string& worker() const = 0;
  // What the call may take; 0 is for ever, and what is said of requests that arrive.
  virtual std::chrono::milliseconds timeout() const = 0;
  virtual uint64_t payload_bytes() const = 0;
  virtual size_t tensors() const = 0;

  // Read when asked for:

  // MODULE.QUALNAME of a Python function, torch.ops.aten.NAME of a builtin operator, the name of a TorchScript
  // function. Empty if there is none, or none that can be read: a policy must refuse those that calls_function().
  virtual const std::string& function() const = 0;
  virtual uint64_t tensor_bytes() const = 0;
  // Two requests that ask for the same have the same digest; 0 for those without function, arguments and tensors.
  // Reads every byte of tensors on the CPU, so that of large ones it takes time.
  virtual uint64_t digest() const = 0;
  // The digest of every byte of the payload, and of the tensors as digest() reads them.
  virtual uint64_t full_digest() const = 0;
};

// An answer on its way back. An interceptor decides it once, as it does a request.
class Answer {
 public:
  virtual ~Answer() = default;

  virtual bool is_error() const = 0;
  // The text of the error.
  virtual std::string error() const = 0;
  // Torch's number of its type, its payload, and the bytes of payload and tensors; none of these of an error.
  virtual int32_t type() const = 0;
  virtual std::string_view payload() const = 0;
  virtual uint64_t bytes() const = 0;

  virtual void pass() = 0;
  // Keeps it from the caller, whose time runs out.
  virtual void drop() = 0;
  // Puts an error in its place.
  virtual void fail(const std::string& text, ErrorKind kind = ErrorKind::kOther) = 0;
};

using AnswerPtr = std::shared_ptr<Answer>;

// How a call is over: what the program gets, or whoever has sent the request.
struct End {
  enum class Kind {
    kAnswer,
    kError,
    kTimeout,   // the time ran out while it was held or dropped here
    kShutdown,  // the agent was shut down while it was held or dropped here
    kDropped,   // a request that arrived is not answered
  };

  Kind kind = Kind::kAnswer;
  std::string text;  // the error's
};

// What observes one call.
class Observer {
 public:
  virtual ~Observer() = default;

  // The answer, or an error, is on its way back. Of a request that was repeated there may be several.
  virtual void on_answer(AnswerPtr answer) { answer->pass(); }
  // The call is over; called once, before the program sees it.
  virtual void on_end(const End& /*end*/) {}
};

// A request on its way. An interceptor decides it once, by one of pass() to fail(), in on_request() or later, on
// any thread: until then it holds it. A second decision is a std::logic_error. If all let go of a request that is
// not decided, it fails. When the time of a call has run out, its request can still be passed on, and arrives late;
// all else does nothing then.
class Request {
 public:
  virtual ~Request() = default;

  virtual const RequestHead& head() const = 0;

  // Has an observer see the answer and the end; before the decision, and once. It must not keep the request, and is
  // told nothing if the call is over already.
  virtual void observe(std::shared_ptr<Observer> observer) = 0;

  // Whether what is attached here arrives at the peer: between TransportAgents, but not over TensorPipe.
  virtual bool carries_context() const = 0;
  // Sends a few bytes along, to the interceptor of the same name at the peer; before the decision. Throws
  // std::length_error if they are too many, std::logic_error if the request arrived. Does nothing if the agent
  // does not carry them.
  virtual void attach(std::string_view context) = 0;
  // What the interceptor of the same name has attached to a request that arrived; empty if nothing.
  virtual std::string_view context() const = 0;

  virtual void pass() = 0;
  // Passes it on so many times, at least once; the first answer counts.
  virtual void repeat(uint64_t times) = 0;
  // Answers it here, without tensors; the type is one of torch's responses.
  virtual void answer(int32_t type, std::string_view payload) = 0;
  // Loses it. The caller's time runs out, if it has a limit.
  virtual void drop() = 0;
  virtual void fail(const std::string& text, ErrorKind kind = ErrorKind::kOther) = 0;
};

using RequestPtr = std::shared_ptr<Request>;

// Does things later and elsewhere, on threads of the agent, until the agent stops.
class Scheduler {
 public:
  using Clock = std::chrono::steady_clock;
  using Job = std::function<void()>;
  using Key = std::pair<Clock::time_point, uint64_t>;

  virtual ~Scheduler() = default;

  // Does `job` in `seconds`.
  virtual Key after(double seconds, Job job) = 0;
  virtual void cancel(const Key& key) = 0;
  // Does `job` now, on another thread.
  virtual void post(Job job) = 0;
};

// What an interceptor is told of the agent that it stands in front of.
struct AgentInfo {
  std::string worker;
  bool carries_context = false;
  std::shared_ptr<Scheduler> scheduler;
};

class Interceptor {
 public:
  Interceptor() = default;
  Interceptor(const Interceptor&) = delete;
  Interceptor& operator=(const Interceptor&) = delete;
  virtual ~Interceptor() = default;

  // The agent is about to start; called once, before anything else.
  virtual void on_start(const AgentInfo& /*agent*/) {}
  // Whether the next request of this direction is to be shown. Asked before each, so it must be cheap.
  virtual bool wants(Direction /*direction*/) const noexcept { return true; }
  // An exception fails the request, if that is not decided.
  virtual void on_request(RequestPtr request) = 0;
  // The worker is about to leave its group: from here on it must hold nothing new, and soon let go of what it
  // holds, which is waited for.
  virtual void on_settle() {}
  // The agent has stopped; calls that are held or dropped here are failed next.
  virtual void on_stop() {}
  // What is added to the agent's metrics, after the interceptor's name and a dot.
  virtual std::map<std::string, std::string> metrics() const { return {}; }
};

}  // namespace rpc_backends
