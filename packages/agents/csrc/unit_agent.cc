// Each translation unit includes several files, because most of the compile time goes into torch's headers. There are
// several units, so that two processors share the work and no unit needs much memory. This unit has the files that use
// torch's RPC agents.
#include "agent.cpp"
#include "call_log.cpp"
#include "calls.cpp"
#include "core.cpp"
#include "core_calls.cpp"
#include "core_pieces.cpp"
#include "core_requests.cpp"
#include "failed_calls.cpp"
#include "failed_rrefs.cpp"
#include "intercepted_call.cpp"
#include "intercepting_agent.cpp"
#include "interceptor_chain.cpp"
#include "members.cpp"
#include "tensorpipe_requests.cpp"
