// The files that use Python objects; see unit_agent.cc.
#include "intercept/call_interceptor.cpp"
#include "module/bindings.cpp"
#include "record/recorder.cpp"
#include "record/telemetry.cpp"
#include "rpc/own_rrefs.cpp"
#include "transport/python_transport.cpp"
