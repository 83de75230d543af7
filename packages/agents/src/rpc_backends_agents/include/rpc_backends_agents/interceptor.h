// Interceptors: code in front of any agent, for fault injection, tracing and policies.
//
// An interceptor sees every request that this worker sends. If the agent is a TransportAgent, it also sees every
// request that arrives. It decides each request exactly once, immediately or later: it passes the request on, repeats
// it, answers it, drops it or fails it. It can also observe a call, to see its answer and its end.
//
// An agent may have several interceptors, ordered by a number; the lowest is nearest to the program. Outgoing requests
// pass them from the lowest to the highest, incoming requests from the highest to the lowest. Answers go the opposite
// way. docs/how-to/write-an-interceptor.md is the tutorial.
//
// This header needs C++17 and nothing of torch. Unless noted otherwise, all methods are called on many threads at the
// same time. These threads may hold torch's locks, so the methods must neither block nor take the GIL.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "rpc_backends_agents/text.h"

namespace rpc_backends {

// An extension module passes its interceptor to rpc_backends_agents.intercept() as an object with a method
// __rpc_interceptor__(). The method returns a capsule with this name that holds a std::shared_ptr<Interceptor>*. The
// number in the name increases with every incompatible change of this header.
inline constexpr const char* kInterceptorCapsule = "rpc_backends.Interceptor.3";

// Limits on the context that interceptors attach to a request: the bytes of one interceptor; the bytes of all together,
// including their names and two more bytes each; and the length of a name.
inline constexpr size_t kMaxContextBytes = 255;
inline constexpr size_t kMaxAllContextBytes = 1024;
inline constexpr size_t kMaxInterceptorName = 63;

enum class Direction { kOutgoing, kIncoming };

// Torch's numbers for request types (torch::distributed::rpc::MessageType).
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

// Torch's name for a request type.
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

// Whether requests of this type call a function.
inline bool calls_function(int32_t type) {
  return type == kPythonCall || type == kPythonRemoteCall || type == kScriptCall || type == kScriptRemoteCall;
}

// Torch's kinds of errors, which rpc.api._get_error_type and programs can distinguish.
enum class ErrorKind { kOther = 0, kTimeout = 1, kIntentional = 2 };

// The properties of a request, read from its bytes without unpickling. Properties that are slow to read are read on
// first use. Once the request is passed on, reading one throws std::logic_error.
class RequestHead {
 public:
  virtual ~RequestHead() = default;

  virtual Direction direction() const = 0;
  // The type of the request, and the types of torch's wrappers around it (autograd, profiling), outermost first.
  virtual int32_t type() const = 0;
  virtual const std::vector<int32_t>& wrappers() const = 0;
  // The other worker. The name is empty if the sender's name is unknown.
  virtual int peer_id() const = 0;
  virtual std::string_view peer() const = 0;
  // This worker.
  virtual std::string_view worker() const = 0;
  // The timeout of the call. 0 means no timeout; incoming requests always have 0.
  virtual std::chrono::milliseconds timeout() const = 0;
  virtual uint64_t payload_bytes() const = 0;
  virtual size_t tensors() const = 0;

  // Read on first use:

  // MODULE.QUALNAME of a Python function, torch.ops.aten.NAME of a builtin operator, or the name of a TorchScript
  // function. Empty if there is no function or it cannot be read. So a policy must refuse requests with an empty name
  // whose type calls_function().
  virtual std::string_view function() const = 0;
  virtual uint64_t tensor_bytes() const = 0;
  // A digest of function, arguments and tensors, which is equal for equal requests; 0 if there are none. Reads every
  // byte of CPU tensors, which takes time for large ones.
  virtual uint64_t digest() const = 0;
  // A digest of every byte of the payload, and of the tensors as in digest().
  virtual uint64_t full_digest() const = 0;
};

// An answer on its way back. An interceptor decides it exactly once, like a request.
class Answer {
 public:
  virtual ~Answer() = default;

  virtual bool is_error() const = 0;
  // The text of the error.
  virtual Text error() const = 0;
  // Torch's number for its type; its payload; the size of payload and tensors. Zero or empty for an error.
  virtual int32_t type() const = 0;
  virtual std::string_view payload() const = 0;
  virtual uint64_t bytes() const = 0;

  virtual void pass() = 0;
  // Drops the answer, so the caller times out.
  virtual void drop() = 0;
  // Replaces the answer with an error.
  virtual void fail(std::string_view text, ErrorKind kind = ErrorKind::kOther) = 0;
};

using AnswerPtr = std::shared_ptr<Answer>;

// How a call has ended, as the caller sees it.
struct End {
  enum class Kind {
    kAnswer,
    kError,
    kTimeout,   // the call timed out while an interceptor held it or after one dropped it
    kShutdown,  // the agent was shut down while an interceptor held it or after one dropped it
    kDropped,   // an incoming request was dropped, so it is not answered
  };

  Kind kind = Kind::kAnswer;
  Text text;           // the text of the error
  uint64_t bytes = 0;  // the size of the answer: payload and tensors; 0 for an error
};

// Observes one call.
class Observer {
 public:
  virtual ~Observer() = default;

  // The answer, or an error, is on its way back. A repeated request may have several answers.
  virtual void on_answer(AnswerPtr answer) { answer->pass(); }
  // The call has ended; called once, before the program gets the result.
  virtual void on_end(const End& /*end*/) {}
  // Whether on_answer() is to be called. An observer that only needs on_end() returns false and costs a call less.
  virtual bool wants_answers() const noexcept { return true; }
};

// A request on its way. An interceptor decides it exactly once by calling one of pass(), repeat(), answer(), drop() and
// fail(), in on_request() or later, on any thread. Until then the interceptor holds the request. A second decision
// throws std::logic_error. If the last reference to an undecided request goes away, the request fails. After the call
// has timed out, pass() and repeat() still send the request, which then arrives late; other decisions do nothing.
class Request {
 public:
  virtual ~Request() = default;

  virtual const RequestHead& head() const = 0;

  // Sets the observer that sees the answer and the end of the call. Call this at most once, before the decision. The
  // observer must not keep a reference to the request. It is not called if the call has already ended.
  virtual void observe(std::shared_ptr<Observer> observer) = 0;

  // Whether attached context arrives at the peer: it does between TransportAgents, but not over TensorPipe.
  virtual bool carries_context() const = 0;
  // Attaches a few bytes for the interceptor with the same name at the peer; call this before the decision. Throws
  // std::length_error if there are too many bytes, and std::logic_error for an incoming request. Does nothing if the
  // agent does not carry context.
  virtual void attach(std::string_view context) = 0;
  // For an incoming request: the bytes that the interceptor with the same name has attached; empty if there are none.
  virtual std::string_view context() const = 0;

  virtual void pass() = 0;
  // Passes the request on `times` times, at least once; the first answer counts.
  virtual void repeat(uint64_t times) = 0;
  // Answers the request here, without tensors; `type` is one of torch's response types.
  virtual void answer(int32_t type, std::string_view payload) = 0;
  // Drops the request. The caller times out, if it has a timeout.
  virtual void drop() = 0;
  virtual void fail(std::string_view text, ErrorKind kind = ErrorKind::kOther) = 0;
};

using RequestPtr = std::shared_ptr<Request>;

// Runs jobs later or on other threads of the agent, until the agent stops.
class Scheduler {
 public:
  using Clock = std::chrono::steady_clock;
  using Job = std::function<void()>;
  using Key = std::pair<Clock::time_point, uint64_t>;

  virtual ~Scheduler() = default;

  // Runs `job` after `seconds`. The key is for cancel().
  virtual Key after(double seconds, Job job) = 0;
  virtual void cancel(const Key& key) = 0;
  // Runs `job` now, on another thread.
  virtual void post(Job job) = 0;
};

// Information about the agent that an interceptor is in front of.
struct AgentInfo {
  Text worker;
  bool carries_context = false;
  std::shared_ptr<Scheduler> scheduler;
};

class Interceptor {
 public:
  Interceptor() = default;
  Interceptor(const Interceptor&) = delete;
  Interceptor& operator=(const Interceptor&) = delete;
  virtual ~Interceptor() = default;

  // The agent is about to start; called once, before all other methods.
  virtual void on_start(const AgentInfo& /*agent*/) {}
  // Whether on_request() should get the next request in this direction. Called for every request, so it must be cheap.
  virtual bool wants(Direction /*direction*/) const noexcept { return true; }
  // Gets a request to decide. An exception fails the request, unless it is already decided.
  virtual void on_request(RequestPtr request) = 0;
  // The worker is about to leave its group. From now on the interceptor must not hold new requests or answers, and it
  // must soon decide those that it holds: the worker waits for that.
  virtual void on_settle() {}
  // The agent has stopped; calls that are still held or were dropped fail after this.
  virtual void on_stop() {}
  // Values for the agent's metrics; each key gets the interceptor's name and a dot in front.
  virtual Metrics metrics() const { return {}; }
};

}  // namespace rpc_backends
