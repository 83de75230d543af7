// The files that use torch's messages and tensors; see unit_agent.cc.
#include "inspect/request_inspector.cpp"
#include "record/span.cpp"
#include "transport/memory_transport.cpp"
#include "wire/codec.cpp"
#include "wire/devices.cpp"
#include "wire/pieces.cpp"
#include "wire/tensors.cpp"
