// The files that use neither torch nor Python objects; see unit_agent.cc.
#include "agent/thread_pool.cpp"
#include "base/log.cpp"
#include "base/scheduler.cpp"
#include "inspect/pickled_call.cpp"
#include "python/python_state.cpp"
#include "wire/frame.cpp"
