// Requests that arrive at torch's TensorPipeAgent: their spans, their entries in a CallLog, and early deletions. The
// agent has no frame with room for a context, so the context is at the end of the request's payload.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <memory>

#include "record/call_log.h"
#include "record/span.h"

namespace rpc_backends {

// Adds a context to a request. Workers that do not look for it ignore it: a pickle ends before its last byte.
// `worker`: the id of this worker, which TensorPipe does not tell either.
void append_span(torch::distributed::rpc::Message& request, const SpanContext& context, int worker);

// Enters the requests that arrive at `agent`, which has not started, into `log`.
void watch_requests(torch::distributed::rpc::RpcAgent& agent, std::shared_ptr<CallLog> log);

// See EarlyDeletions. `agent` has not started.
void settle_early_deletions(torch::distributed::rpc::RpcAgent& agent);

}  // namespace rpc_backends
