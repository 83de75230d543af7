// Each translation unit includes several files, because most of the compile time goes into torch's headers. There are
// several units, so that two processors share the work and no compiler needs more than 1.1 GB. This unit has the
// agent on a transport.
#include "agent/agent.cpp"
#include "agent/calls.cpp"
#include "agent/core.cpp"
#include "agent/members.cpp"
#include "agent/message_receiver.cpp"
#include "agent/message_sender.cpp"
#include "agent/outgoing_calls.cpp"
#include "agent/request_server.cpp"
