"""Real calls between two processes over a backend, with a time limit."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from rpc_backends_cli.report import Finding, limit_note, seconds
from rpc_backends_processes import WorkerContext, isolation

CALLS = 100


def check(backend: str, limit: float) -> Finding:
    """Start two workers on ``backend``, call one from the other, and time the calls.

    :param limit: time limit in seconds for everything, including importing torch.
    """
    with tempfile.TemporaryDirectory(prefix="rpc-backends-") as folder:
        url = f"file://{Path(folder, 'store')}"
        outcomes = isolation.run(
            _call_each_other, [(backend, url, rank, limit) for rank in range(2)], limit
        )
    failed = _first_failed(outcomes)
    if failed is None:
        return _well(backend, *(outcome.result for outcome in outcomes))
    stage = failed.stage or "beginning"
    data: dict[str, Any] = {
        "error": failed.error,
        "stage": stage,
        "traceback": failed.traceback,
        "log": failed.log,
        "timed_out": failed.timed_out,
        "limit_seconds": limit,
    }
    text = f"failed while {stage}: {failed.error}{limit_note(limit, timed_out=failed.timed_out)}"
    return Finding("problem", backend, text, data)


def _well(backend: str, data: dict[str, Any], theirs: dict[str, Any]) -> Finding:
    if "required" in data:
        text = f"not tested: it requires the options {', '.join(data['required'])}"
        return Finding("note", backend, text, data)
    # The faster worker waited while the other one imported torch.
    data["start_seconds"] = min(data["start_seconds"], theirs["start_seconds"])
    text = (
        f"{seconds(data['median_call_seconds'])} a call, "
        f"first {seconds(data['first_call_seconds'])}, start {seconds(data['start_seconds'])}"
    )
    if data["note"]:
        text += f"; {data['note']}"
    return Finding("ok", backend, text, data)


def _first_failed(outcomes: list[isolation.Outcome]) -> isolation.Outcome | None:
    """Return the outcome that explains the failure: an exception, else a crash."""
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    # The first failure is the cause; the other worker may have failed or waited because of it.
    failed.sort(key=lambda outcome: (outcome.when, outcome.timed_out))
    return failed[0] if failed else None


def _call_each_other(
    me: WorkerContext, backend: str, url: str, rank: int, rpc_timeout: float
) -> dict[str, Any]:
    """Join a group of two in which rank 0 calls rank 1; return the durations in seconds.

    If the backend has required options, return their names as ``required`` instead.
    """
    me.doing("importing torch")
    from torch.distributed import rpc

    import rpc_backends_core
    from rpc_backends_cli.options import required_options
    from rpc_backends_core.spi.inspection import HookWarning, default_registry, settings

    warnings.simplefilter("ignore", HookWarning)  # doctor checks hook packages separately
    # The environment may disable the bridge or override the backend; this tests the backend.
    rpc_backends_core.install()
    os.environ.pop(settings.OVERRIDE, None)
    me.doing("constructing the options")
    required = required_options(default_registry().backend(backend))
    if required:
        return {"required": required}
    options = rpc_backends_core.construct_rpc_backend_options(
        backend, rpc_timeout=rpc_timeout, init_method=url
    )
    # An engine whose workers have certificates says how two workers can use one of this host.
    prepare = getattr(options, "prepare_probe", None)
    note: str = prepare() if prepare is not None else ""
    me.doing("starting")
    started = time.perf_counter()
    rpc.init_rpc(
        f"doctor{rank}", backend=backend, rank=rank, world_size=2, rpc_backend_options=options
    )
    data: dict[str, Any] = {"start_seconds": time.perf_counter() - started, "note": note}
    if rank == 0:
        me.doing("calling")
        data.update(_call(rpc))
    me.doing("stopping")
    started = time.perf_counter()
    rpc.shutdown()
    data["stop_seconds"] = time.perf_counter() - started
    me.doing("ending the process")
    return data


def _call(rpc: Any) -> dict[str, Any]:
    times = []
    for _ in range(CALLS + 1):
        started = time.perf_counter()
        answered_by = rpc.rpc_sync("doctor1", os.getpid)
        times.append(time.perf_counter() - started)
        if answered_by == os.getpid():
            raise RuntimeError("a call to the other worker was executed by the caller itself")
    first, *later = times
    return {
        "first_call_seconds": first,
        "median_call_seconds": statistics.median(later),
        "calls": len(later),
    }
