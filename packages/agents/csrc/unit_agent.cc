// Each translation unit includes several files, because most of the compile time goes into torch's headers. There are
// several units, so that two processors share the work and no compiler needs more than 1.1 GB. This unit has the
// agent on a transport.
#include "agent/agent.cpp"
#include "agent/calls.cpp"
#include "agent/core.cpp"
#include "agent/core_calls.cpp"
#include "agent/core_pieces.cpp"
#include "agent/core_requests.cpp"
#include "agent/members.cpp"
