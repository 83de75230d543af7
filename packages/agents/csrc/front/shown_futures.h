// The futures that the program gets in place of those of the agent: something happens before they complete.
#pragma once

#include <string>

#include "inspect/request_inspector.h"
#include "record/span.h"
#include "rpc/futures.h"

namespace rpc_backends {

// Returns a future whose callbacks run in a span, like the code that has made the call.
FuturePtr with_callbacks_in(const SpanContext& span, const FuturePtr& answer);

// Returns a future that has a value only when the class in it is known: the program's next call needs the class.
FuturePtr with_class_learnt(const RRefId& rref, const FuturePtr& answer);

// Returns a future that gets an error only when the RRef that the call creates has the error.
FuturePtr with_rref_failed(const CreatedRRef& created, bool is_own, const FuturePtr& answer);

// Returns a future whose error names the worker called, if the error is TensorPipe's own, such as "eof".
FuturePtr with_callee_named(const std::string& callee, const FuturePtr& answer);

}  // namespace rpc_backends
