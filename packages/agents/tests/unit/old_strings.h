// What an agent does with a transport and an interceptor. old_strings.cc is compiled with the old layout of
// std::string.
#pragma once

#include "rpc_backends_agents/interceptor.h"
#include "rpc_backends_agents/transport.h"

namespace rpc_backends::old_strings {

Text listen(Transport& transport, const char* name);
void learn(Transport& transport, const char* name, const char* address);
// The text of the TransportError that send() throws.
Text error_of_send(Transport& transport);
// The reason of the event that follows reject().
Text reason_after_reject(Transport& transport, const char* reason);
Text metric(Transport& transport, const char* name);
bool moves(Transport& transport, const char* device_type);
// Sets an allocator that throws a std::runtime_error with this text.
void fail_allocations(Transport& transport, const char* text);

// Starts the interceptor for this worker, passes a request to it, and returns the text with which it fails the request.
Text why_refused(Interceptor& interceptor, const char* worker, const char* peer, const char* function);
// The same for an answer, which is an error with this text; the observer comes from the interceptor.
Text why_replaced(Interceptor& interceptor, const char* error);

}  // namespace rpc_backends::old_strings
