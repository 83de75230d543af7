// What the parts of an agent share. Each part has one concern:
//
//   MessageSender     encodes messages, and sends them, large tensors in pieces
//   OutgoingCalls     the calls of this worker, from send() to the end of the future
//   RequestServer     the requests of other workers, from their arrival to the answer
//   MessageReceiver   decodes what arrives, and passes it to the calls or to the server
//   Core              starts and stops them, handles lost peers, and counts
//
// A part uses those in the rows above it. A job on another thread keeps a std::shared_ptr of the state, which owns all
// parts.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "agent/activity.h"
#include "agent/agent.h"
#include "agent/lost_peers.h"
#include "agent/members.h"
#include "agent/request_policy.h"
#include "agent/thread_pool.h"
#include "record/call_log.h"
#include "wire/devices.h"

namespace rpc_backends {

struct AgentState : std::enable_shared_from_this<AgentState> {
  struct Counters {
    std::atomic<uint64_t> sent{0}, answered{0}, received{0}, served{0};
    std::atomic<uint64_t> bytes_sent{0}, bytes_received{0};
    std::atomic<uint64_t> bad_frames{0}, lost_peers{0}, unsent_answers{0}, refused_requests{0};
  };

  // `is_behind`, `on_shortage`: as in ThreadPool::Options.
  AgentState(const std::string& name, int id, std::shared_ptr<Transport> with, const AgentOptions& options,
             std::function<bool(int)> is_behind, std::function<void()> on_shortage)
      : id(id),
        options(options),
        transport(std::move(with)),
        thread_pool(std::make_shared<ThreadPool>(
            transport, ThreadPool::Options{options.num_worker_threads, options.max_unanswered_bytes,
                                           std::move(is_behind), std::move(on_shortage)})) {
    members.add(name, id);
  }

  const int id;
  const AgentOptions options;
  const std::shared_ptr<Transport> transport;
  const std::shared_ptr<ThreadPool> thread_pool;
  std::function<void(const Parts&)> handle_own_message;  // receives what this worker sends to itself
  std::shared_ptr<InterceptorChain> interceptors;
  std::shared_ptr<CallLog> call_log;      // null if calls are not recorded
  std::shared_ptr<RequestPolicy> policy;  // null if every request is served
  Members members;
  Devices devices;
  LostPeers lost;
  Activity activity;
  Counters counters;
  AfterCopies after_copies;
  std::atomic<bool> running{false};
};

}  // namespace rpc_backends
