"""A static group: all workers start together, exchange their device maps, and stop together."""

from __future__ import annotations

from typing import Any

from torch._C._distributed_rpc import TensorPipeAgent

from rpc_backend_tensorpipe import devices
from rpc_backend_tensorpipe.agents import (
    Ranked,
    StaticGroupAgent,
    group_for,
    start_static_agent,
)
from rpc_backend_tensorpipe.devices import WorkerDevices


class StaticAgent(StaticGroupAgent, TensorPipeAgent):
    """Torch's agent, in a group whose worker ids are the ranks."""


class RankedStaticAgent(Ranked, StaticAgent):
    """Torch's agent, in a group in which a process keeps the worker id of an earlier group."""


def start(store: Any, name: str, rank: int, world_size: int | None, options: Any) -> Any:
    """Start the agent of one worker; returns when the agents of all workers listen.

    :raises ValueError: device maps do not fit; every worker raises the same.
    :raises GroupError: a worker failed or did not come; every worker raises the same.
    """
    group = group_for(store, name, rank, world_size, options, "TENSORPIPE")
    mine = WorkerDevices.of_this_process(name, options)
    workers = [WorkerDevices.from_json(value) for value in group.exchange(mine.to_json())]
    devices.check(workers, complete=True)
    reverse = devices.reverse_maps(mine, workers)
    used = devices.used_devices(mine, reverse)
    devices.initialise(used)
    return start_static_agent(StaticAgent, RankedStaticAgent, group, options, reverse, used)
