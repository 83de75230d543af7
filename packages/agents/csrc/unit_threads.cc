// The files that use neither torch nor Python objects; see unit_agent.cc.
#include "frame.cpp"
#include "log.cpp"
#include "pickled_call.cpp"
#include "python_state.cpp"
#include "scheduler.cpp"
#include "thread_pool.cpp"
