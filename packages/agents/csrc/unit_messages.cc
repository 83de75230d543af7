// The files that use torch's messages and tensors; see unit_agent.cc.
#include "codec.cpp"
#include "devices.cpp"
#include "memory_transport.cpp"
#include "pieces.cpp"
#include "request_inspector.cpp"
#include "span.cpp"
#include "tensors.cpp"
