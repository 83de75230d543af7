"""Gives the spans of ended calls, whose ids and times are known, to the program's tracer provider."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from logging import getLogger
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Status, StatusCode

from rpc_backends_opentelemetry import __version__
from rpc_backends_opentelemetry.attributes import ANSWERED, SCHEMA_URL, SCOPE, attributes_of

_log = getLogger(__name__)
_SAMPLER = re.compile(
    r"(?:ParentBased\{root:)?(?:(AlwaysOnSampler)|(AlwaysOffSampler)|TraceIdRatioBased\{([^}]+)\})"
)


class Ids:
    """An id generator of the SDK that gives the ids that C++ has chosen."""

    trace_id = 0
    span_id = 0

    def generate_trace_id(self) -> int:
        """Return the id of the trace of the next span."""
        return self.trace_id

    def generate_span_id(self) -> int:
        """Return the id of the next span."""
        return self.span_id

    def is_trace_id_random(self) -> bool:
        """Return False, because the context does not carry the flag for random trace ids."""
        return False


class Spans:
    """A tracer of the SDK for spans that have ended.

    :param provider: a tracer provider of the SDK.
    :raises TypeError: the provider is of another kind, whose spans cannot be given ids.
    """

    def __init__(self, provider: trace.TracerProvider) -> None:
        tracer: Any = provider.get_tracer(SCOPE, __version__, schema_url=SCHEMA_URL)
        if not hasattr(tracer, "id_generator") or not hasattr(tracer, "sampler"):
            raise TypeError(f"a {type(tracer).__name__} is not a tracer of the OpenTelemetry SDK")
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        self._ids = Ids()
        self._tracer = tracer
        tracer.id_generator = self._ids  # of this scope's tracer only
        tracer.sampler = ALWAYS_ON  # C++ has sampled
        self.ratio = ratio_of(getattr(provider, "sampler", None))

    def emit(self, span: Mapping[str, Any], peer: str, backend: str) -> None:
        """Start and end a span.

        :param span: as ``Telemetry.take_spans`` gives it.
        :param peer: the name of the other worker; empty if it is not known.
        """
        high, low, span_id, _ = span["context"]
        incoming = bool(span["incoming"])
        self._ids.trace_id, self._ids.span_id = high << 64 | low, span_id
        parent = trace.SpanContext(
            trace_id=high << 64 | low,
            span_id=span["parent"],
            is_remote=incoming,
            trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
        )
        context = trace.set_span_in_context(trace.NonRecordingSpan(parent))
        started = self._tracer.start_span(
            span["method"],
            context=context,
            kind=trace.SpanKind.SERVER if incoming else trace.SpanKind.CLIENT,
            attributes={
                **attributes_of(span, peer),
                "rpc_backends.backend": backend,
                "rpc_backends.message_type": span["type"],
                "rpc_backends.request.size": span["bytes"],
                "rpc_backends.response.size": span["answer_bytes"],
            },
            start_time=span["begin_us"] * 1000,
        )
        if span["state"] != ANSWERED:
            started.set_status(Status(StatusCode.ERROR, span["error"] or span["state"]))
        started.end(end_time=span["end_us"] * 1000)


def ratio_of(sampler: Any) -> float:
    """Return the share of new traces that a sampler of the SDK takes.

    C++ samples before there is a span, so it cannot ask the sampler. For a sampler of the program's own
    it takes every trace.
    """
    describe: Callable[[], str] = getattr(sampler, "get_description", str)
    match = _SAMPLER.match(describe())
    if not match:
        _log.warning("the sampler %s is not known here: every RPC trace is sampled", describe())
        return 1.0
    always, never, ratio = match.groups()
    return 1.0 if always else 0.0 if never else float(ratio)
