"""Configures the SDK by the ``OTEL_*`` variables if the program has not configured one.

The SDK's classes read most variables themselves; this module reads which exporters are wanted.
"""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from importlib.util import find_spec
from logging import getLogger
from typing import Any

from opentelemetry import metrics, trace

_log = getLogger(__name__)
_OTLP = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


class SettingError(ValueError):
    """A variable names an exporter that is not installed, or an unknown protocol."""


def configure(worker: str) -> None:
    """Configure the SDK, unless the program has. Without an installed SDK, log a warning.

    :param worker: the resource attribute ``service.instance.id``, if the variables give none.
    """
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    if find_spec("opentelemetry.sdk") is None:
        _log.warning(
            "RPC_BACKENDS_OTEL is set, but there is no OpenTelemetry SDK: spans and metrics of RPC go "
            "nowhere. Install rpc-backends-opentelemetry[sdk], or configure an SDK in the program."
        )
        return
    try:
        _configure(worker)
    except SettingError as error:
        _log.warning("spans and metrics of RPC go nowhere: %s", error)


def _configure(worker: str) -> None:
    from opentelemetry._logs import set_logger_provider
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    span_exporters = _exporters("traces")
    metric_exporters = _exporters("metrics")
    log_exporters = _exporters("logs")
    given = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create(
        {} if "service.instance.id=" in given else {"service.instance.id": worker}
    )
    tracers = TracerProvider(resource=resource)
    for exporter in span_exporters:
        tracers.add_span_processor(BatchSpanProcessor(exporter()))
    readers = [
        kind() if issubclass(kind, MetricReader) else PeriodicExportingMetricReader(kind())
        for kind in metric_exporters
    ]
    loggers = LoggerProvider(resource=resource)
    for exporter in log_exporters:
        loggers.add_log_record_processor(BatchLogRecordProcessor(exporter()))
    trace.set_tracer_provider(tracers)
    set_logger_provider(loggers)
    metrics.set_meter_provider(MeterProvider(metric_readers=readers, resource=resource))


def _exporters(signal: str) -> list[type[Any]]:
    """Return the classes of the exporters of ``traces``, ``metrics`` or ``logs``.

    Logs are not asked for by those who choose an exporter of metrics, and have no other one by default.

    :raises SettingError: an exporter is not installed.
    """
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    default = "otlp" if signal != "logs" or any(map(_is_there, _OTLP.values())) else "none"
    names = [name.strip() for name in (os.environ.get(variable) or default).split(",")]
    exporters = []
    for name in names:
        if name == "none":
            continue
        wanted = _otlp(signal) if name == "otlp" else name
        matches = list(entry_points(group=f"opentelemetry_{signal}_exporter", name=wanted))
        if not matches:
            raise SettingError(
                f"the exporter {name!r} of {variable} is not installed; {_package_of(name, wanted)}"
            )
        exporters.append(matches[0].load())
    return exporters


def _otlp(signal: str) -> str:
    """Return the name of the exporter for OTLP; HTTP is the default, as OpenTelemetry says."""
    protocol = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL") or os.environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL"
    )
    if protocol is None:
        only_grpc = _is_there(_OTLP["grpc"]) and not _is_there(_OTLP["http/protobuf"])
        protocol = "grpc" if only_grpc else "http/protobuf"
    if protocol not in _OTLP:
        raise SettingError(f"the protocol {protocol!r} is not one of {', '.join(_OTLP)}")
    return _OTLP[protocol]


def _is_there(exporter: str) -> bool:
    return bool(list(entry_points(group="opentelemetry_traces_exporter", name=exporter)))


def _package_of(name: str, wanted: str) -> str:
    package = wanted.replace("_", "-") if name == "otlp" else name
    return f"install opentelemetry-exporter-{package}"
