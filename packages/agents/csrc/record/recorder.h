// The flight recorder: it shows the calls of a worker on a Unix socket. It needs neither the GIL nor a lock of the
// agent, so it also answers when the worker hangs.
#pragma once

#include <pybind11/pybind11.h>
#include <signal.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "record/call_log.h"
#include "record/failed_calls.h"
#include "rpc_backends_agents/forks.h"

namespace rpc_backends {

// What the states of this process say of the policy that guards its worker, from now on; empty without one.
void describe_guard(const std::string& text);

// The agent writes the calls into the log.
class Recorder final : public std::enable_shared_from_this<Recorder> {
 public:
  // What the socket needs; Python makes these.
  struct Server {
    int listener = -1;     // a listening Unix socket
    int stack_file = -1;   // faulthandler writes stacks to this file...
    int stack_signal = 0;  // ...when this signal arrives
    std::string backend;
    std::string group;     // the address where the workers of the group meet
    std::string group_id;  // equal for the workers of the group, and no others; empty if it is not known
    std::string host;
    std::string dumps;  // the folder for dumps; empty if the worker writes none
    bool dump_at_end = false;
  };

  // `agent`: null if the worker has none yet, see show(). `capacity`: the number of ended calls to keep. Owns the
  // descriptors in `server`, and closes them in stop().
  Recorder(std::weak_ptr<torch::distributed::rpc::RpcAgent> agent, size_t capacity, const Server& server);
  ~Recorder();

  void start(const std::string& worker);
  void stop();
  std::unordered_map<std::string, std::string> metrics() const;

  // Starts for a worker that is in init_rpc and has no agent. `rank` is -1 and `world_size` 0 if they are not known.
  void show(const std::string& worker, int rank, int world_size);
  // From now on, shows that it has joined a group.
  void join_group(const std::string& group_id);
  // From now on, shows that its init_rpc has failed.
  void fail(const std::string& error);

  const std::shared_ptr<CallLog>& log() const { return log_; }
  // Null if the worker writes no dumps: failed calls then have no explanation in their errors.
  std::shared_ptr<FailedCalls> explained_calls() const { return server_.dumps.empty() ? nullptr : failed_calls_; }
  const std::shared_ptr<FailedCalls>& failed_calls() const { return failed_calls_; }
  // Between set_wants_gil(true) and set_wants_gil(false), the thread of dumps.Watcher waits for the GIL, or has it for
  // a moment.
  void set_wants_gil(bool wants) { wants_gil_since_us_ = wants ? CallLog::now_us() : 0; }
  // Writes a dump, unless it has just written one; returns the path of the last one. Throws std::system_error.
  std::string dump(const std::string& reason) const;
  // What a state has besides the calls in flight: nothing, the calls of the last seconds, or all calls and the stacks.
  enum class Extent { kShort, kLast, kAll };

  // Returns the state of the worker as JSON.
  std::string state(Extent extent, const std::string& reason = {}) const;

 private:
  std::string stacks() const;
  void serve();
  void answer(int connection) const;
  std::string write_dump(const std::string& reason) const;
  void close_descriptors();
  void take_signal();
  void give_signal_back();

  const Birthplace birthplace_;
  const std::weak_ptr<torch::distributed::rpc::RpcAgent> agent_;
  const std::shared_ptr<CallLog> log_;
  Server server_;
  int wake_;
  std::string worker_;
  // Of a worker without an agent:
  int rank_ = -1;
  int world_size_ = 0;
  int64_t started_us_ = 0;
  mutable std::mutex start_mutex_;  // for error_ and server_.group_id
  std::string error_;

  std::atomic<int64_t> wants_gil_since_us_{0};  // 0 if no thread does
  const std::shared_ptr<FailedCalls> failed_calls_;
  mutable std::mutex stacks_mutex_, dump_mutex_;
  mutable std::string last_dump_;
  mutable std::chrono::steady_clock::time_point dumped_;
  struct sigaction before_{};
  bool takes_signal_ = false;
  std::thread thread_;
};

void bind_recorder(pybind11::module_& module);

}  // namespace rpc_backends
