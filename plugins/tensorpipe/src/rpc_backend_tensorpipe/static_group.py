"""A static group: all workers start together, exchange their device maps, and stop together."""

from __future__ import annotations

from typing import Any

from torch.distributed.rpc import TensorPipeAgent

from rpc_backend_tensorpipe.agents import StaticGroupAgent, start_static_agent
from rpc_backends_core.spi import Group, RankMappingMixin, device_maps, stored


class TensorPipeStaticAgent(StaticGroupAgent, TensorPipeAgent):
    """Torch's agent in a static group where every worker id equals the rank."""


class RankedTensorPipeStaticAgent(RankMappingMixin, TensorPipeStaticAgent):
    """Torch's agent in a static group where a process keeps its worker id from an earlier group."""


def start(group: Group, options: Any) -> Any:
    """Start this worker's agent; return when the agents of all workers listen.

    :raises ValueError: the device maps are inconsistent; every worker raises the same error.
    :raises GroupError: a worker failed or did not arrive; every worker raises the same error.
    """
    mine = device_maps.WorkerDevices.of_this_process(group.name, options)
    workers = [
        stored.checked(f"exchange/1/{rank}", value, device_maps.WorkerDevices.from_json)
        for rank, value in enumerate(group.exchange(mine.to_json()))
    ]
    device_maps.check(workers, complete=True)
    reverse = device_maps.reverse_maps(mine, workers)
    used = device_maps.used_devices(mine, reverse)
    device_maps.initialise(used)
    return start_static_agent(
        TensorPipeStaticAgent, RankedTensorPipeStaticAgent, group, options, reverse, used
    )
