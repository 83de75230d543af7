// Each translation unit includes several files, because most of the compile time goes into torch's headers. There are
// several units, so that two processors share the work and no unit needs much memory. This unit has the files that use
// torch's RPC agents.
#include "agent/agent.cpp"
#include "agent/calls.cpp"
#include "agent/core.cpp"
#include "agent/core_calls.cpp"
#include "agent/core_pieces.cpp"
#include "agent/core_requests.cpp"
#include "agent/members.cpp"
#include "front/intercepting_agent.cpp"
#include "front/tensorpipe_requests.cpp"
#include "intercept/intercepted_call.cpp"
#include "intercept/interceptor_chain.cpp"
#include "record/call_log.cpp"
#include "record/failed_calls.cpp"
#include "rpc/failed_rrefs.cpp"
#include "rpc/futures.cpp"
