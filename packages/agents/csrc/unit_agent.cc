// Translation units are made of several files each, because most of the work is to read torch's headers; and there
// are several of them, so that two processors share the work and none needs much memory. This one is of what knows
// torch's RPC agents.
#include "agent.cpp"
#include "calls.cpp"
#include "core.cpp"
#include "intercepted_call.cpp"
#include "intercepting_agent.cpp"
#include "interceptor_chain.cpp"
#include "members.cpp"
