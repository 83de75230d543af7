"""Configures the SDK by the ``OTEL_*`` variables if the program has not configured one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from importlib.metadata import entry_points
from importlib.util import find_spec
from logging import getLogger

from opentelemetry import trace

_log = getLogger(__name__)
_CONFIGURATOR = "OTEL_PYTHON_CONFIGURATOR"


def configure(worker: str) -> None:
    """Configure the SDK, unless the program has. Without an installed SDK, log a warning.

    :param worker: the resource attribute ``service.instance.id``, if the variables give none.
    """
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    name = os.environ.get(_CONFIGURATOR, "configurator")
    found = list(entry_points(group="opentelemetry_configurator", name=name))
    if not found:
        _log.warning(
            "RPC_BACKENDS_OTEL is set, but there is no OpenTelemetry SDK: spans and metrics of RPC go "
            "nowhere. Install rpc-backends-opentelemetry[sdk], or configure an SDK in the program."
        )
        return
    try:
        with _defaults():
            found[0].load()().configure(resource_attributes=_resource(worker))
    except Exception as error:
        _log.warning(
            "the OpenTelemetry SDK cannot be configured by the OTEL_* variables, so spans and "
            "metrics of RPC go nowhere: %s",
            error,
        )


def _resource(worker: str) -> dict[str, str]:
    given = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return {} if "service.instance.id=" in given else {"service.instance.id": worker}


@contextlib.contextmanager
def _defaults() -> Iterator[None]:
    """Set the defaults of OpenTelemetry's specification, which the SDK does not know."""
    http = find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    wanted = {
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf" if http else "grpc",
    }
    missing = {name: value for name, value in wanted.items() if not os.environ.get(name)}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)
