"""The attributes of calls, by OpenTelemetry's semantic conventions for RPC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The scope of all spans and metrics of this package, and the version of the conventions.
SCOPE = "rpc_backends_opentelemetry"
SCHEMA_URL = "https://opentelemetry.io/schemas/1.45.0"
#: The value of ``rpc.system.name``.
SYSTEM = "torch"
#: The state of a call that has ended without an error.
ANSWERED = "answered"

Attributes = dict[str, str | int]


def attributes_of(call: Mapping[str, Any], peer: str) -> Attributes:
    """Return the attributes of a span or a series.

    :param call: a call as ``Telemetry`` gives it, with ``method``, ``state`` and ``incoming``.
    :param peer: the name of the other worker; empty if it is not known.
    """
    state = str(call["state"])
    attributes: Attributes = {
        "rpc.system.name": SYSTEM,
        "rpc.method": str(call["method"]),
        "rpc.response.status_code": status_code(state),
    }
    if state != ANSWERED:
        attributes["error.type"] = status_code(state)
    if peer:
        attributes["client.address" if call["incoming"] else "server.address"] = peer
    return attributes


def status_code(state: str) -> str:
    """Return the status of a call: ``OK``, or its state, as in ``TIMED_OUT``."""
    return "OK" if state == ANSWERED else state.upper().replace(" ", "_")
