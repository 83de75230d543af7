"""Tasks of the process that calls a peer."""

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
from rpc_backends_cli.processes import Me


def begin(me: Me, name: str, cores: list[int]) -> None:
    """Start a callee.

    :param cores: on which it is to stay; any if empty.
    """
    me.memory["callee"] = import_module(KNOWN[name].callee).open_callee(cores)


def end(me: Me) -> None:
    """End it."""
    me.memory.pop("callee").close()


def latency(me: Me, kind: str, calls: int, seconds: float) -> array[float]:
    """Return the times of calls that are made one after the other: ``noop`` or ``tensor``."""
    callee: Callee = me.memory["callee"]
    if kind == "noop":
        return _timed(lambda: callee.call("noop"), calls, seconds)
    import torch

    few = torch.ones(16)
    return _timed(lambda: callee.call("echo", few), calls, seconds)


def throughput(me: Me, in_flight: int, seconds: float) -> float:
    """Return how many no-ops a second end, with so many in flight."""
    callee: Callee = me.memory["callee"]
    begin = time.perf_counter()
    end = begin + seconds
    waiting = deque(callee.start() for _ in range(in_flight))
    made = in_flight
    while time.perf_counter() < end or made < 4 * in_flight:
        callee.wait(waiting.popleft())
        waiting.append(callee.start())
        made += 1
    for one in waiting:
        callee.wait(one)
    return made / (time.perf_counter() - begin)


def size(me: Me, kind: str, length: int, calls: int, seconds: float) -> array[float]:
    """Return the times of sending ``length`` bytes: ``oneway``, or ``echo`` and back."""
    import torch

    callee: Callee = me.memory["callee"]
    if me.memory.get("length") != length:
        me.memory.update(length=length, tensor=torch.ones(length, dtype=torch.uint8))
    tensor = me.memory["tensor"]
    function = "echo" if kind == "echo" else "sink"
    return worker_tasks.timed(lambda: callee.call(function, tensor), calls, seconds, 1, least=2)


def _timed(call: Callable[[], Any], calls: int, seconds: float) -> array[float]:
    return worker_tasks.timed(call, calls, seconds, worker_tasks.WARM_UP, least=calls // 4)
