"""Measure the costs that the simulation needs: of requests to the store, and of calls to a worker.

Processor time is measured, because other programs on the machine hardly affect it.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from simulated import Costs
from torch.distributed import rpc

from rpc_backends_bench.accounting import processor_times
from rpc_backends_bench.participants import Group
from rpc_backends_bench.subjects import parse
from rpc_backends_processes import Template, WorkerContext, Workers

_REQUESTS = 3000
_CONNECTIONS = 40
_CALLS = 1500
_IN_FLIGHT = 32
#: Size of a large value in bytes, and how often it is read.
_VALUE, _READS = 1 << 20, 60
_ROUNDS = 3


def host(me: WorkerContext) -> int:
    """Host a store; return its port."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set("value", "x" * _VALUE)
    me.memory["store"] = store
    return int(store.port)


def connect(me: WorkerContext, port: int, times: int = 1) -> None:
    """Connect to the store ``times`` times."""
    for _ in range(times):
        me.memory["store"] = dist.TCPStore(
            "127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60)
        )


def add(me: WorkerContext, times: int) -> None:
    """Add to a counter."""
    for _ in range(times):
        me.memory["store"].add(me.name, 1)


def read(me: WorkerContext, times: int) -> None:
    """Read a large value."""
    for _ in range(times):
        me.memory["store"].get("value")


def call(me: WorkerContext, times: int) -> None:
    """Call worker 0 ``times`` times, with several calls in flight."""
    under_way: list[Any] = []
    for _ in range(times):
        if len(under_way) == _IN_FLIGHT:
            under_way.pop(0).wait()
        under_way.append(rpc.rpc_async("worker0", time.monotonic))
    for each in under_way:
        each.wait()


def measure(template: Template) -> Costs:
    """Measure the costs; return medians."""
    with Workers(2, seconds=300, template=template) as workers:
        port = workers[0].call(host)
        workers[1].call(connect, port)
        request = _cost(workers, add, _REQUESTS)
        # A read is two requests: torch's client waits for the key first.
        byte = max(0.0, _cost(workers, read, _READS) - 2 * request) / _VALUE
        # A new client also makes two requests: it validates the protocol and sends a ping.
        connected = max(0.0, _cost(workers, connect, _CONNECTIONS, port) - request)
    group = Group(parse("ZEROMQ"), 2, seconds=120)
    with contextlib.closing(group):
        group.open()
        group.start()
        called = _cost(group.workers, call, _CALLS)
        group.stop()
    return Costs(request=request, byte=byte, connect=connected, call=called)


def _cost(workers: Workers, step: Callable[..., None], units: int, *arguments: Any) -> float:
    """Return the processor time of worker 0 for each repetition of a step of worker 1, in seconds."""
    each = []
    for _ in range(_ROUNDS):
        (before,) = processor_times(workers[0].pid)
        workers[1].call(step, *arguments, times=units)
        (after,) = processor_times(workers[0].pid)
        each.append((after - before) / units)
    return statistics.median(each)
