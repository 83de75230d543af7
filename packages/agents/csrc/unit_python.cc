// The files that use Python objects; see unit_agent.cc.
#include "bindings.cpp"
#include "call_interceptor.cpp"
#include "own_rrefs.cpp"
#include "python_transport.cpp"
#include "recorder.cpp"
#include "telemetry.cpp"
