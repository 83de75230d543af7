"""The current span of a thread, for C++ and for OpenTelemetry's Python API.

Calls are made and served in C++ without the GIL, but the program's spans are in Python. So this module
tells C++ the program's span when it changes, and gives the program the span of the request that its
thread serves. OpenTelemetry's API asks one object for the current context. :func:`install` puts another
object around it.
"""

from __future__ import annotations

import asyncio
import random
from contextvars import Token

from opentelemetry import context as context_api
from opentelemetry import trace
from opentelemetry.context.context import (
    Context,
    _RuntimeContext,
)

from rpc_backends_agents import current_span, set_span

_LOW = (1 << 64) - 1


class RpcContext(_RuntimeContext):
    """The context of the API, which also knows the spans of requests."""

    def __init__(self, inner: _RuntimeContext) -> None:
        self._inner = inner

    def attach(self, context: Context) -> Token[Context]:
        """Make a context current on this thread."""
        token = self._inner.attach(context)
        _tell(context)
        return token

    def detach(self, token: Token[Context]) -> None:
        """Make the previous context current again."""
        self._inner.detach(token)
        _tell(self._inner.get_current())

    def get_current(self) -> Context:
        """Return the current context, with the request's span if it has no span of the program."""
        context = self._inner.get_current()
        if trace.get_current_span(context) is not trace.INVALID_SPAN:
            return context
        serving = current_span()
        return context if serving is None else _with_span(context, *serving)


def install() -> None:
    """Put this context around the one of the API, once."""
    inner = context_api._RUNTIME_CONTEXT
    if not isinstance(inner, RpcContext):
        context_api._RUNTIME_CONTEXT = RpcContext(inner)


def _tell(context: Context) -> None:
    """Tell C++ the span of a context that is now current on this thread."""
    span = trace.get_current_span(context).get_span_context()
    if not span.is_valid or _in_coroutine():
        set_span(None)
    else:
        high, low = span.trace_id >> 64, span.trace_id & _LOW
        set_span((high, low, span.span_id, span.trace_flags.sampled))


def _in_coroutine() -> bool:
    """Return whether an event loop runs on this thread; it changes the context at any ``await``."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _with_span(context: Context, high: int, low: int, span: int, is_sampled: bool) -> Context:
    if not is_sampled:  # C++ keeps no ids of such traces
        low, span = random.getrandbits(64) or 1, random.getrandbits(64) or 1
    parent = trace.SpanContext(
        trace_id=high << 64 | low,
        span_id=span,
        is_remote=False,
        trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED if is_sampled else 0),
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(parent), context)
