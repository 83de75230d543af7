"""What the workers of `faults.py` do when they are asked."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch.distributed import rpc

from rpc_backends_cli.processes import Me


def join(me: Me, url: str, backend: str) -> str:
    """Join a group of all workers; return what stands in front."""
    options = rpc.backend_registry.construct_rpc_backend_options(
        rpc.BackendType[backend], init_method=url
    )
    rpc.init_rpc(
        me.name,
        backend=rpc.BackendType[backend],
        rank=me.index,
        world_size=me.size,
        rpc_backend_options=options,
    )
    return type(rpc.api._get_current_rpc_agent()).__name__


def leave(me: Me) -> None:
    """Leave it."""
    rpc.shutdown()


def set_rules(me: Me, count: int) -> None:
    """Have so many rules, none of which is for any message that is sent here."""
    import rpc_backends_faults as faults

    while _names:
        faults.remove(_names.pop())
    for number in range(count):
        # What is dearest to find out: half of them ask for the function.
        which: dict[str, Any] = (
            {"function": f"*.train.step_{number}"} if number % 2 else {"receiver": f"ps{number}"}
        )
        _names.append(faults.add(what="drop", name=f"never-{number}", **which))


def block(me: Me, kind: str, calls: int, unmeasured: int) -> float:
    """Return the median time of a call to the other worker, in seconds."""
    small, large = torch.ones(2, 2), torch.ones(1 << 18)
    call = {
        "no-op": lambda: rpc.rpc_sync("worker1", noop),
        "torch.add": lambda: rpc.rpc_sync("worker1", torch.add, args=(small, small)),
        "echo of 1 MiB": lambda: rpc.rpc_sync("worker1", echo, args=(large,)),
    }[kind]
    for _ in range(unmeasured):
        call()
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def noop() -> None:
    """Do nothing."""


def echo(value: Any) -> Any:
    """Return the argument."""
    return value


_names: list[str] = []
