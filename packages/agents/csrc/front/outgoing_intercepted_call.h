// A request that this worker sends, from an InterceptingAgent to the agent behind it.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <chrono>
#include <memory>

#include "agent/agent.h"
#include "intercept/interceptor_chain.h"
#include "wire/frame.h"

namespace rpc_backends {

// Sends to the inner agent. Only a TransportAgent, which `transport_agent` then is, carries contexts; the number of the
// call is 0 for any other agent.
TransportAgent::SentCall send_to_inner(torch::distributed::rpc::RpcAgent& inner, TransportAgent* transport_agent,
                                       const torch::distributed::rpc::WorkerInfo& to,
                                       c10::intrusive_ptr<torch::distributed::rpc::Message> message, float timeout,
                                       const torch::distributed::rpc::DeviceMap& device_map, const Contexts& contexts);

// The same through the interceptors: the future has what they make of the response. `inner_timeout` is in seconds, as
// the caller gave it; `timeout` is what it means, and 0 means no timeout.
TransportAgent::SentCall send_through(std::shared_ptr<InterceptorChain> chain,
                                      std::shared_ptr<torch::distributed::rpc::RpcAgent> inner,
                                      std::shared_ptr<TransportAgent> transport_agent,
                                      const torch::distributed::rpc::WorkerInfo& to,
                                      c10::intrusive_ptr<torch::distributed::rpc::Message> message, float inner_timeout,
                                      std::chrono::milliseconds timeout,
                                      const torch::distributed::rpc::DeviceMap& device_map, const Contexts& contexts);

}  // namespace rpc_backends
