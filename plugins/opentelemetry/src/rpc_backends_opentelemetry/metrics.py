"""Metrics of calls, counted in C++ and read when a reader of the SDK collects."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from rpc_backends_agents import Telemetry
from rpc_backends_opentelemetry import __version__
from rpc_backends_opentelemetry.attributes import SCHEMA_URL, SCOPE, Attributes, attributes_of

_HISTOGRAMS = {
    False: ("rpc.client.call.duration", "Duration of outgoing calls"),
    True: ("rpc.server.call.duration", "Duration of incoming calls"),
}
#: Returns the name of the other worker of a call.
PeerName = Callable[[Mapping[str, Any]], str]
_Key = tuple[tuple[str, str | int], ...]
_Row = tuple[list[int], int]  # the counts of the buckets, and the sum in microseconds


class Durations:
    """The histograms of the durations of calls.

    OpenTelemetry's API has no instrument that gives a histogram when it is read, so this adds the
    histograms to what a reader of the SDK has collected.
    """

    def __init__(self, telemetry: Telemetry, peer_name: PeerName) -> None:
        self._telemetry = telemetry
        self._peer_name = peer_name
        self._bounds = [bound / 1e6 for bound in telemetry.bounds_us]
        self._start = time.time_ns()

    def follow(self, provider: metrics.MeterProvider) -> None:
        """Add the histograms to what the readers of a provider collect.

        :raises TypeError: the provider is not the SDK's.
        """
        readers = getattr(provider, "_metric_readers", None)
        if readers is None:
            readers = getattr(getattr(provider, "_sdk_config", None), "metric_readers", None)
        if readers is None:
            raise TypeError(
                f"a {type(provider).__name__} is not a provider of the OpenTelemetry SDK"
            )
        for reader in readers:
            self._add_to(reader)

    def _add_to(self, reader: Any) -> None:
        from opentelemetry.sdk.metrics import Histogram
        from opentelemetry.sdk.metrics.export import AggregationTemporality

        collect = reader._collect
        is_delta = (
            reader._instrument_class_temporality.get(Histogram) is AggregationTemporality.DELTA
        )
        last: dict[tuple[bool, _Key], _Row] = {}
        since = self._start

        def collect_with_calls(*arguments: Any, **options: Any) -> Any:
            nonlocal since
            collected = collect(*arguments, **options)
            if collected is None or not collected.resource_metrics:
                return collected
            rows, now = self._rows(), time.time_ns()
            added = self._metrics(_less(rows, last) if is_delta else rows, since, now, is_delta)
            if is_delta:
                last.update(rows)
                since = now
            first, *others = collected.resource_metrics
            # Exporters merge nothing, so the histograms go to the metrics of this scope.
            scopes = [
                replace(scope, metrics=[*scope.metrics, *added])
                if scope.scope.name == SCOPE
                else scope
                for scope in first.scope_metrics
            ]
            return replace(
                collected, resource_metrics=[replace(first, scope_metrics=scopes), *others]
            )

        reader._set_collect_callback(collect_with_calls)

    def _rows(self) -> dict[tuple[bool, _Key], _Row]:
        rows: dict[tuple[bool, _Key], _Row] = {}
        for series in self._telemetry.series():
            key = (series["incoming"], _key(attributes_of(series, self._peer_name(series))))
            buckets, sum_us = series["buckets"], series["sum_us"]
            if key in rows:  # workers that had the same name
                known, known_us = rows[key]
                buckets = [
                    count + known_count for count, known_count in zip(buckets, known, strict=True)
                ]
                sum_us += known_us
            rows[key] = (buckets, sum_us)
        return rows

    def _metrics(
        self, rows: Mapping[tuple[bool, _Key], _Row], start: int, now: int, is_delta: bool
    ) -> list[Any]:
        from opentelemetry.sdk.metrics.export import (
            AggregationTemporality,
            Histogram,
            HistogramDataPoint,
            Metric,
        )

        nothing: Any = None  # the least and the greatest duration are not kept
        temporality = (
            AggregationTemporality.DELTA if is_delta else AggregationTemporality.CUMULATIVE
        )
        metrics = []
        for incoming, (name, description) in _HISTOGRAMS.items():
            points = [
                HistogramDataPoint(
                    attributes=dict(key),
                    start_time_unix_nano=start,
                    time_unix_nano=now,
                    count=sum(buckets),
                    sum=sum_us / 1e6,
                    bucket_counts=buckets,
                    explicit_bounds=self._bounds,
                    min=nothing,
                    max=nothing,
                )
                for (side, key), (buckets, sum_us) in rows.items()
                if side == incoming and any(buckets)
            ]
            if points:
                data = Histogram(data_points=points, aggregation_temporality=temporality)
                metrics.append(Metric(name=name, description=description, unit="s", data=data))
        return metrics


def _key(attributes: Attributes) -> _Key:
    return tuple(sorted(attributes.items()))


def _less(
    rows: Mapping[tuple[bool, _Key], _Row], last: Mapping[tuple[bool, _Key], _Row]
) -> dict[tuple[bool, _Key], _Row]:
    """Return what was added since the last collection."""
    rest = dict(rows)
    for key, (before, before_us) in last.items():
        buckets, sum_us = rows[key]
        rest[key] = (
            [now - then for now, then in zip(buckets, before, strict=True)],
            sum_us - before_us,
        )
    return rest


class Instruments:
    """The observable instruments; their values are read when a reader collects them."""

    def __init__(self, telemetry: Telemetry, peer_name: PeerName) -> None:
        self._telemetry = telemetry
        self._peer_name = peer_name
        self._gauges: dict[str, float] = {}
        self._meter = metrics.get_meter(SCOPE, __version__, schema_url=SCHEMA_URL)
        for name, field, what in (
            ("rpc_backends.request.size", "bytes", "requests"),
            ("rpc_backends.response.size", "answer_bytes", "answers"),
        ):
            self._meter.create_observable_counter(
                name, [self._sizes(field)], "By", f"Bytes of {what} of calls that have ended"
            )
        self._meter.create_observable_counter(
            "rpc_backends.spans.lost",
            [lambda _: [Observation(telemetry.lost_spans)]],
            "{span}",
            "Sampled spans that were not exported because there were too many at once",
        )

    def set_gauges(self, values: Mapping[str, float]) -> None:
        """Set the values of all gauges; a gauge without a value is not collected."""
        new = values.keys() - self._gauges.keys()
        self._gauges = {**dict.fromkeys(self._gauges, math.nan), **values}
        for name in sorted(new):
            self._meter.create_observable_gauge(name, [self._gauge(name)])

    def _gauge(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(_: CallbackOptions) -> Iterable[Observation]:
            value = self._gauges[name]
            return [] if math.isnan(value) else [Observation(value)]

        return read

    def _sizes(self, field: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(_: CallbackOptions) -> Iterable[Observation]:
            totals: dict[_Key, int] = {}
            for series in self._telemetry.series():
                attributes = attributes_of(series, self._peer_name(series))
                attributes["rpc_backends.side"] = "server" if series["incoming"] else "client"
                key = _key(attributes)
                totals[key] = totals.get(key, 0) + series[field]
            return [Observation(total, dict(key)) for key, total in totals.items()]

        return read
