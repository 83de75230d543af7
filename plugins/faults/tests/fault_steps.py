"""Steps for the workers of these tests, and functions that leave a trace when RPC calls them."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import torch
from torch.distributed import rpc

import rpc_backends_core
import rpc_backends_faults as faults
from support import steps
from support.workers import WorkerContext

#: The arguments of all `do` calls in this process, in order.
DONE: list[Any] = []
_changed = threading.Condition()


def join(me: WorkerContext, url: str, backend: str, **settings: Any) -> None:
    """Join a group of all workers, with fault injection enabled."""
    faults.enable()
    steps.join(me, url, backend=backend, **settings)


def find_package(me: WorkerContext, path: str) -> None:
    """Make an installed package importable."""
    sys.path.insert(0, path)
    rpc_backends_core.refresh()


def do(what: Any) -> Any:
    """Leave a trace; called by RPC."""
    with _changed:
        DONE.append(what)
        _changed.notify_all()
    return what


def also_do(what: Any) -> Any:
    """Leave a trace as `do` does, under another function name."""
    return do(what)


def done() -> list[Any]:
    """Return the traces so far."""
    with _changed:
        return list(DONE)


def wait_until_done(what: Any, times: int = 1) -> list[Any]:
    """Wait until a trace was left ``times`` times; return all traces."""
    with _changed:
        assert _changed.wait_for(lambda: DONE.count(what) >= times, timeout=30), DONE
        return list(DONE)


def attempt(
    me: WorkerContext,
    to: str,
    what: Any,
    timeout: float = 30,
    rules: tuple[dict[str, Any], ...] = (),
) -> tuple[str, float]:
    """Call :func:`do` on a worker; return the result or the error, and the seconds that it took."""
    names = [faults.add(**rule) for rule in rules]
    begin = time.monotonic()
    try:
        outcome = str(rpc.rpc_sync(to, do, args=(what,), timeout=timeout))
    except RuntimeError as error:
        outcome = str(error)
    seconds = time.monotonic() - begin
    for name in names:
        faults.remove(name)
    return outcome, seconds


def several(
    me: WorkerContext, to: str, whats: list[Any], rules: tuple[dict[str, Any], ...]
) -> list[str]:
    """Call :func:`do` repeatedly; return the results, or the first words of the errors."""
    names = [faults.add(**rule) for rule in rules]
    outcomes = []
    for what in whats:
        try:
            outcomes.append(str(rpc.rpc_sync(to, do, args=(what,), timeout=30)))
        except RuntimeError as error:
            outcomes.append(" ".join(str(error).split(" ")[:3]))
    for name in names:
        faults.remove(name)
    return outcomes


def add(me: WorkerContext, rule: dict[str, Any]) -> str:
    """Add a rule."""
    return faults.add(**rule)


def remove(me: WorkerContext, name: str) -> None:
    """Remove a rule."""
    faults.remove(name)


def counts(me: WorkerContext) -> dict[str, int]:
    """Return how often each rule has fired."""
    return faults.counts()


def seen(me: WorkerContext) -> list[Any]:
    """Return the traces in this worker."""
    return done()


def wait_for(me: WorkerContext, what: Any, times: int = 1) -> list[Any]:
    """Wait until a trace was left ``times`` times in this worker; return all traces."""
    return wait_until_done(what, times)


def metrics(me: WorkerContext) -> dict[str, str]:
    """Return the metrics of faults."""
    values: dict[str, str] = rpc.api._get_current_rpc_agent().get_metrics()
    return {key: value for key, value in values.items() if key.startswith("faults.")}


def tensors(me: WorkerContext, to: str) -> list[float]:
    """Use an RRef, and a call with tensors."""
    held = rpc.remote(to, torch.add, args=(torch.ones(2), 1))
    summed: torch.Tensor = held.to_here() + rpc.rpc_sync(to, torch.neg, args=(-torch.ones(2),))
    return summed.tolist()
