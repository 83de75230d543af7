"""A collector: receives OTLP over HTTP and keeps what arrives."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue


def values_of(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    """Return attributes as a dictionary."""
    return {
        attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value"))
        for attribute in attributes
    }


@dataclass(frozen=True)
class Span:
    """A span that has arrived."""

    worker: str
    name: str
    trace: bytes
    id: bytes
    parent: bytes
    is_server: bool
    begin: int
    end: int
    is_error: bool
    attributes: dict[str, Any] = field(hash=False)


@dataclass(frozen=True)
class Point:
    """A value of a metric that has arrived; `value` is the count of a histogram."""

    worker: str
    metric: str
    value: float
    attributes: dict[str, Any] = field(hash=False)


class Collector:
    """A server on a free port; a context manager."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._points: dict[Any, Point] = {}
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if self.path == "/v1/traces":
                    collector.take_traces(body)
                elif self.path == "/v1/metrics":
                    collector.take_metrics(body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take_traces(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            worker = values_of(resource.resource.attributes)["service.instance.id"]
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        Span(
                            worker=worker,
                            name=span.name,
                            trace=span.trace_id,
                            id=span.span_id,
                            parent=span.parent_span_id,
                            is_server=span.kind == span.SPAN_KIND_SERVER,
                            begin=span.start_time_unix_nano,
                            end=span.end_time_unix_nano,
                            is_error=span.status.code == span.status.STATUS_CODE_ERROR,
                            attributes=values_of(span.attributes),
                        )
                    )

    def take_metrics(self, body: bytes) -> None:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            worker = values_of(resource.resource.attributes)["service.instance.id"]
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    kind = metric.WhichOneof("data")
                    for point in getattr(metric, kind).data_points:
                        is_histogram = kind == "histogram"
                        number = "" if is_histogram else point.WhichOneof("value")
                        value = point.count if is_histogram else getattr(point, number)
                        attributes = values_of(point.attributes)
                        key = (worker, metric.name, *sorted(attributes.items()))
                        self._points[key] = Point(worker, metric.name, value, attributes)

    def points(self, metric: str, worker: str) -> list[Point]:
        """Return the last values of a metric of a worker."""
        all_points = self._points.values()
        return [point for point in all_points if (point.metric, point.worker) == (metric, worker)]

    def metrics(self) -> set[str]:
        """Return the names of the metrics that have arrived."""
        return {point.metric for point in list(self._points.values())}  # while others arrive

    def span(self, name: str, worker: str, *, is_server: bool = False) -> Span:
        """Return the only span with this name."""
        spans = [
            span
            for span in self.spans
            if (span.name.rpartition(".")[2], span.worker, span.is_server)
            == (name, worker, is_server)
        ]
        assert len(spans) == 1, f"{len(spans)} spans {name} of {worker} in {self.spans}"
        return spans[0]
