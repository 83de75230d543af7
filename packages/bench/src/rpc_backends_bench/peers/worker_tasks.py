"""Tasks that run in the process that calls a peer."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable
from importlib import import_module
from typing import Any

from rpc_backends_bench import worker_tasks
from rpc_backends_bench.peers import KNOWN
from rpc_backends_bench.peers.callee import Callee
from rpc_backends_processes import WorkerContext


def begin(me: WorkerContext, name: str, cores: list[int]) -> None:
    """Start a callee.

    :param cores: the cores that it may use; empty for all.
    """
    me.memory["callee"] = import_module(KNOWN[name].callee).open_callee(cores)


def end(me: WorkerContext) -> None:
    """End the callee."""
    me.memory.pop("callee").close()


def latency(me: WorkerContext, kind: str, calls: int, seconds: float) -> array[float]:
    """Return the times of calls in sequence, in seconds.

    :param kind: ``noop`` or ``tensor``.
    """
    callee: Callee = me.memory["callee"]
    if kind == "noop":
        return _timed(lambda: callee.call("noop"), calls, seconds)
    import torch

    few = torch.ones(16)
    return _timed(lambda: callee.call("echo", few), calls, seconds)


def throughput(me: WorkerContext, in_flight: int, seconds: float) -> float:
    """Return the number of no-ops per second with ``in_flight`` calls in flight."""
    callee: Callee = me.memory["callee"]
    begin = time.perf_counter()
    end = begin + seconds
    waiting = deque(callee.start() for _ in range(in_flight))
    made = in_flight
    while time.perf_counter() < end or made < 4 * in_flight:
        callee.wait(waiting.popleft())
        waiting.append(callee.start())
        made += 1
    for reply in waiting:
        callee.wait(reply)
    return made / (time.perf_counter() - begin)


def size(me: WorkerContext, kind: str, length: int, calls: int, seconds: float) -> array[float]:
    """Return the times, in seconds, of sending ``length`` bytes.

    :param kind: ``oneway``, or ``echo`` for there and back.
    """
    callee: Callee = me.memory["callee"]
    function = "echo" if kind == "echo" else "sink"
    return worker_tasks.timed_size(
        me, length, lambda tensor: callee.call(function, tensor), calls, seconds
    )


def _timed(call: Callable[[], Any], calls: int, seconds: float) -> array[float]:
    return worker_tasks.timed(call, calls, seconds, worker_tasks.WARM_UP_CALLS, least=calls // 4)
