"""Entries of the guard's audit log, as log records of OpenTelemetry."""

from __future__ import annotations

import json
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber, get_logger_provider

_EVENT = "rpc_backends.guard"


def emit(entry: str, backend: str) -> None:
    """Emit a record of an entry.

    :param entry: a JSON object, as in the audit log.
    :param backend: the backend of this worker.
    """
    fields: dict[str, Any] = json.loads(entry)
    event = str(fields.pop("event", ""))
    time = int(fields.pop("time_ms", 0)) * 1_000_000
    attributes = {f"{_EVENT}.{name}": value for name, value in fields.items() if value is not None}
    get_logger_provider().get_logger("rpc_backends").emit(
        LogRecord(
            timestamp=time or None,
            severity_text="WARN",
            severity_number=SeverityNumber.WARN,
            event_name=f"{_EVENT}.{event.replace(' ', '_')}",
            body=_text(event, fields),
            attributes={**attributes, f"{_EVENT}.event": event, "rpc.system": backend},
        )
    )


def _text(event: str, fields: dict[str, Any]) -> str:
    if "count" in fields:
        return f"{fields['count']} entries of the guard's audit log are not reported here"
    by = f" a request of {fields['peer']!r}" if fields.get("peer") else ""
    what = f": {fields.get('kind')} {fields.get('name')}".rstrip()
    return f"worker {fields.get('worker')!r}: {event}{by}{what}"
