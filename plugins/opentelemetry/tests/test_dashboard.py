"""The dashboard of examples/observability, on a real Prometheus that scrapes real workers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import autograd, rpc

from rpc_backends_processes import free_port
from support import steps
from support.workers import WorkerContext, Workers

EXAMPLE = Path(__file__).parents[3] / "examples/observability"
PROMETHEUS = os.environ.get("PROMETHEUS") or shutil.which("prometheus")
LIMIT = 60.0


def queries() -> list[str]:
    """Return the queries of the dashboard, for data of the last seconds."""
    dashboard = json.loads((EXAMPLE / "grafana/dashboard.json").read_text())
    return [
        target["expr"].replace("$__rate_interval", "30s")
        for panel in dashboard["panels"]
        for target in panel["targets"]
        if "expr" in target
    ]


# --- what the workers do ----------------------------------------------------------------------------


def fail() -> None:
    raise ValueError("expected")


def join_with_port(me: WorkerContext, url: str, ports: list[int]) -> None:
    os.environ["OTEL_EXPORTER_PROMETHEUS_PORT"] = str(ports[me.index])
    steps.join(me, url, backend="ZEROMQ")


def make_calls(me: WorkerContext) -> None:
    rpc.rpc_sync("worker1", torch.add, (torch.ones(10), 1))
    with pytest.raises(ValueError, match="expected"):
        rpc.rpc_sync("worker1", fail)
    with autograd.context() as context:
        tensor = torch.ones(2, requires_grad=True)
        loss = rpc.rpc_sync("worker1", torch.mul, (tensor, 2)).sum()
        autograd.backward(context, [loss])


# --- Prometheus -------------------------------------------------------------------------------------


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[tuple[str, list[int]]]:
    """Run a Prometheus that scrapes two ports; gives its URL and these ports."""
    if PROMETHEUS is None:
        pytest.skip("there is no prometheus: install it, or set PROMETHEUS to the program")
    own, *ports = (free_port() for _ in range(3))
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "400ms"},
        "scrape_configs": [
            {
                "job_name": "workers",
                "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}],
            }
        ],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML too
    command = [
        PROMETHEUS,
        f"--config.file={tmp_path}/prometheus.yml",
        f"--storage.tsdb.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{own}",
    ]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            yield f"http://127.0.0.1:{own}", ports
        finally:
            process.send_signal(signal.SIGTERM)


def result_of(url: str, query: str) -> list[Any]:
    """Return what Prometheus answers to a query; nothing while it starts."""
    address = f"{url}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            series: list[Any] = json.load(answer)["data"]["result"]
            return series
    except urllib.error.HTTPError as error:
        if error.code == 503:
            return []
        raise AssertionError(f"{query}: {error.read().decode()}") from error
    except urllib.error.URLError:
        return []


@pytest.mark.slow
def test_each_query_of_the_dashboard_returns_data(
    prometheus: tuple[str, list[int]], tmp_path: Path
) -> None:
    pytest.importorskip("opentelemetry.exporter.prometheus")
    url, ports = prometheus
    env = {
        "RPC_BACKENDS_OTEL": "1",
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_METRICS_EXPORTER": "prometheus",
        "OTEL_EXPORTER_PROMETHEUS_HOST": "127.0.0.1",
    }
    missing = queries()
    assert len(missing) > 10
    with Workers(2, env=env) as workers:
        workers.run(join_with_port, f"file://{tmp_path}/store", ports)
        end = time.monotonic() + LIMIT
        while missing and time.monotonic() < end:
            workers[0].call(make_calls)
            missing = [query for query in missing if not has_number(result_of(url, query))]
        workers.run(steps.leave)
    assert not missing


def has_number(result: list[Any]) -> bool:
    return any(series["value"][1] != "NaN" for series in result)
