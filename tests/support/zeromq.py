"""Steps and functions for workers of groups that run ZEROMQ."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import rpc

from support import steps
from support.workers import Worker, WorkerContext

NAME = "ZEROMQ"


def eventually(condition: Callable[[], Any], what: Callable[[], str], seconds: float = 30) -> Any:
    """Wait for a condition that no event reports, by polling; return its value."""
    until = time.monotonic() + seconds
    while not (outcome := condition()):
        assert time.monotonic() < until, f"never: {what()}"
        time.sleep(0.02)
    return outcome


def logged_line(worker: Worker, *texts: str) -> str:
    """Wait for a line in a worker's log that contains all of these texts; return it."""

    def line() -> str | None:
        return next(
            (line for line in worker.output.splitlines() if all(text in line for text in texts)),
            None,
        )

    text: str = eventually(line, lambda: f"a line with {texts} in:\n{worker.output}")
    return text


# --- functions that are called by RPC --------------------------------------------------------------

_runs: collections.Counter[str] = collections.Counter()
_runs_lock = threading.Lock()


def run_counted(token: str, payload: Any = None) -> str:
    """Count this call; called by RPC."""
    with _runs_lock:
        _runs[token] += 1
    return token


# --- steps -----------------------------------------------------------------------------------------


def join(me: WorkerContext, url: str, *, dynamic: bool = False, **options: Any) -> None:
    """Join a ZEROMQ group with the given options."""
    steps.join(me, url, backend=NAME, world_size=None if dynamic else 0, **options)


def runs(me: WorkerContext) -> dict[str, int]:
    """Return how often `run_counted` has run in this worker, by token."""
    with _runs_lock:
        return dict(_runs)


def endpoints(me: WorkerContext) -> list[str]:
    """Return the TCP endpoints that this worker listens on."""
    text: str = rpc.api._get_current_rpc_agent().get_debug_info()["transport.zeromq.listens_on"]
    return text.split()


def metric(me: WorkerContext, name: str) -> int:
    """Return one metric of this worker's agent."""
    return int(rpc.api._get_current_rpc_agent().get_metrics()[name])


def exercise(me: WorkerContext, to: str) -> None:
    """Make one call of each kind to a worker, and check the results."""
    small, large = torch.arange(10.0), torch.rand(300_000)
    assert torch.equal(rpc.rpc_sync(to, torch.add, args=(small, 1)), small + 1)
    assert torch.equal(rpc.rpc_sync(to, torch.mul, args=(large, 2)), large * 2)
    assert steps.call(me, to).split()[0] == to
    assert steps.use_rref(me, to) == [2.0, 2.0, 2.0]
