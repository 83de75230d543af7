"""Entries of the audit log are log records of OpenTelemetry where rpc-backends-opentelemetry reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import guard_attacks
import guard_steps
import pytest
from test_attacks import POLICY

from support import steps
from support.workers import WorkerContext, Workers

pytestmark = pytest.mark.slow
pytest.importorskip("rpc_backends_opentelemetry")
pytest.importorskip("opentelemetry.sdk")

_kept: list[Any] = []


def join(me: WorkerContext, url: str) -> None:
    """Join a group in a program that keeps its log records."""
    from opentelemetry import _logs, trace
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
    from opentelemetry.sdk.trace import TracerProvider

    exporter = InMemoryLogRecordExporter()
    provider = LoggerProvider()
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    _logs.set_logger_provider(provider)
    trace.set_tracer_provider(TracerProvider())  # the package then configures nothing
    _kept.append(exporter)
    steps.join(me, url, backend="ZEROMQ")


def leave(me: WorkerContext) -> list[tuple[str, dict[str, Any]]]:
    """Leave the group; return the names and attributes of the log records."""
    steps.leave(me)
    records = [data.log_record for data in _kept[0].get_finished_logs()]
    return [(str(record.event_name), dict(record.attributes)) for record in records]


def test_refusals_are_log_records(tmp_path: Path) -> None:
    """One is decided in C++, from the head of the request, and one in Python."""
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    folder = tmp_path / "traces"
    calls = guard_attacks.attacks(str(folder))
    with Workers(2, env={"RPC_BACKENDS_GUARD": str(policy), "RPC_BACKENDS_OTEL": "1"}) as workers:
        workers.run(join, f"file://{tmp_path}/store")
        workers[1].call(guard_steps.attack, {name: calls[name] for name in ("mkdir", "argument")})
        refused, _ = workers.run(leave)
    names = [attributes["rpc_backends.guard.name"] for _, attributes in refused]
    assert names == ["posix:mkdir", "posix:mkdir"]
    for event, attributes in refused:
        assert event == "rpc_backends.guard.refused"
        assert attributes["rpc_backends.guard.peer"] == "worker1"
        assert attributes["rpc_backends.guard.worker"] == "worker0"
        assert attributes["rpc.system"] == "ZEROMQ"
