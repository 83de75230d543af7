// The flight recorder: an interceptor that keeps the calls in flight and the last calls of a worker, and shows them on a
// Unix socket. It needs neither the GIL nor a lock of the agent, so it also answers when the worker hangs.
#pragma once

#include <pybind11/pybind11.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cell.h"
#include "forks.h"
#include "rpc_backends_agents/interceptor.h"

namespace rpc_backends {

// One call. Texts that are too long are cut.
struct RecordedCall {
  enum class State : uint8_t { kInFlight, kAnswered, kFailed, kTimedOut, kShutDown, kDropped };

  uint64_t number = 0;         // of this call among the recorded calls of this worker: 1, 2, 3...
  uint64_t caller_number = 0;  // incoming calls: the number at the caller; 0 if it is not known
  uint64_t thread = 0;         // the thread that made the call, or on which it arrived, as pthread_self() gives it
  int64_t begin_us = 0;        // microseconds since 1970: when the call was made, or arrived
  int64_t end_us = 0;          // 0 while it is in flight
  uint64_t bytes = 0;          // of the request, with its tensors
  uint64_t answer_bytes = 0;
  int64_t timeout_ms = 0;
  int32_t peer_id = -1;
  int32_t type = 0;
  uint8_t incoming = 0;
  State state = State::kInFlight;
  char peer[62] = {};
  char function[128] = {};
  char error[128] = {};
};

class Recorder final : public Interceptor, public std::enable_shared_from_this<Recorder> {
 public:
  // What the socket needs; Python makes these.
  struct Server {
    int listener = -1;      // a listening Unix socket
    int stack_file = -1;    // faulthandler writes stacks to this file...
    int stack_signal = 0;   // ...when this signal arrives
    std::string backend;
    std::string group;  // equal for the workers of a group
  };

  // `capacity`: the number of ended calls to keep. Owns the descriptors in `server`, and closes them in on_stop().
  Recorder(std::weak_ptr<torch::distributed::rpc::RpcAgent> agent, size_t capacity, const Server& server);
  ~Recorder() override;

  void on_start(const AgentInfo& agent) override;
  void on_request(RequestPtr request) override;
  void on_stop() override;
  std::map<std::string, std::string> metrics() const override;

  // Returns the state of the worker as JSON. `all`: with the calls that have ended.
  std::string state(bool all) const;

 private:
  class Watch;

  // A place for a call in flight.
  struct Place {
    std::atomic<bool> taken{false};
    Cell<RecordedCall> call;
  };
  static constexpr size_t kChunk = 256;
  static constexpr size_t kChunks = 1024;

  Place* take_place();
  void ended(const RecordedCall& call, Place* place);
  std::vector<RecordedCall> in_flight() const;
  std::vector<RecordedCall> recent() const;
  std::string stacks() const;
  void serve();
  void answer(int connection) const;
  void close_descriptors();

  const Birthplace birthplace_;
  const std::weak_ptr<torch::distributed::rpc::RpcAgent> agent_;
  Server server_;
  int wake_;
  std::string worker_;
  std::atomic<uint64_t> number_{0}, ended_{0}, unrecorded_{0};
  std::vector<Cell<RecordedCall>> recent_;
  std::atomic<Place*> chunks_[kChunks] = {};
  std::mutex grow_mutex_;
  mutable std::mutex stacks_mutex_;
  std::thread thread_;
};

void bind_recorder(pybind11::module_& module);

}  // namespace rpc_backends
