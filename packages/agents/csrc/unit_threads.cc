// What knows neither torch nor Python's objects; see unit_agent.cc.
#include "frame.cpp"
#include "log.cpp"
#include "python_state.cpp"
#include "scheduler.cpp"
#include "thread_pool.cpp"
