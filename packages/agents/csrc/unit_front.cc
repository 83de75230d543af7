// The other files that use torch's RPC agents; see unit_agent.cc.
#include "front/intercepting_agent.cpp"
#include "front/tensorpipe_requests.cpp"
#include "intercept/intercepted_call.cpp"
#include "intercept/interceptor_chain.cpp"
#include "record/call_log.cpp"
#include "record/failed_calls.cpp"
#include "rpc/failed_rrefs.cpp"
#include "rpc/futures.cpp"
