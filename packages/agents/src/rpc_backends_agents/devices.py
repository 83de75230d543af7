"""The accelerators that an agent sends tensors from and to: what its workers publish, and their maps."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from rpc_backends_agents import _C
from rpc_backends_core.spi import device_maps, stored

DeviceMap = dict[torch.device, torch.device]


class AgentDevices:
    """Keeps what each worker of the group declares, and tells the agent in C++.

    A worker without accelerators and without device maps publishes its address only, so nothing changes
    for groups that send CPU tensors.

    :param options: has ``device_maps`` and ``devices``.
    """

    def __init__(self, agent: _C.TransportAgent, name: str, options: Any) -> None:
        self._agent = agent
        self._mine = device_maps.WorkerDevices.of_this_process(name, options)
        self._workers: dict[int, device_maps.WorkerDevices] = {}
        self._changing = threading.Lock()

    def declared(self) -> dict[str, Any] | None:
        """Return what this worker publishes beside its address; None if there is nothing to say."""
        mine = self._mine
        return mine.to_json() if mine.accelerator or mine.maps or mine.devices else None

    def publication(self, address: str) -> str | dict[str, Any]:
        """Return what this worker of a static group publishes; :func:`published` reads it."""
        declared = self.declared()
        return address if declared is None else {"address": address, "devices": declared}

    def add(self, workers: Mapping[int, device_maps.WorkerDevices]) -> None:
        """Store what workers declare, by worker id; tensors that they send may arrive from now on."""
        with self._changing:
            self._workers.update(workers)
            self._apply()

    def remove(self, worker_id: int) -> None:
        """Forget a worker that has left."""
        with self._changing:
            self._workers.pop(worker_id, None)
            self._apply()

    def check(self, worker_ids: Iterable[int]) -> None:
        """Check the declarations of this worker and of some members of a dynamic group.

        :raises ValueError: a device or a map is wrong.
        """
        with self._changing:
            known = [self._workers[worker] for worker in worker_ids if worker in self._workers]
        others = [worker for worker in known if worker.name != self._mine.name]
        device_maps.check([self._mine, *others], complete=False)

    def _fits(self, worker: device_maps.WorkerDevices) -> bool:
        """Return whether this worker can use the declaration of another one.

        In a dynamic group, workers publish their declarations before they are checked.
        """
        if self._mine.name not in worker.maps:
            return True
        try:
            device_maps.check([self._mine, worker], complete=False)
        except ValueError:
            return False
        return True

    def _apply(self) -> None:
        """Give the agent the devices, the maps for calls by callee, and those for answers by caller."""
        reverse = {
            worker_id: map_
            for worker_id, worker in self._workers.items()
            if self._fits(worker)
            for map_ in device_maps.reverse_maps(self._mine, [worker]).values()
        }
        used = device_maps.used_devices(
            self._mine, {str(device): map_ for device, map_ in reverse.items()}
        )
        if not used and not reverse and not self._mine.maps:
            return
        device_maps.initialise(used)
        self._agent.set_devices(
            {name: _texts(map_) for name, map_ in self._mine.maps.items()},
            {worker_id: _texts(map_) for worker_id, map_ in reverse.items()},
            [str(device) for device in used],
        )


def published(key: str, name: str, value: Any) -> tuple[str, device_maps.WorkerDevices]:
    """Return the address and the devices that a worker has published under ``key``.

    :param name: the worker's name.
    :raises StoreError: no worker has written this.
    """
    if isinstance(value, dict):
        address, devices = value.get("address"), value.get("devices")
    else:
        address, devices = value, None
    if not isinstance(address, str):
        raise stored.unsuitable(key, f"{stored.shown(value)}, not an address")
    return address, stored.checked(
        key, devices, lambda stored_devices: worker_devices(name, stored_devices)
    )


def worker_devices(name: str, declared: Any) -> device_maps.WorkerDevices:
    """Return the devices of the worker ``name`` from what :meth:`AgentDevices.declared` returned there.

    :raises Exception: ``declared`` is not in that form; the type depends on what is wrong.
    """
    if declared is None:
        return device_maps.WorkerDevices(name, None, 0, {}, [])
    return replace(device_maps.WorkerDevices.from_json(declared), name=name)


def _texts(map_: DeviceMap) -> list[tuple[str, str]]:
    return [(str(mine), str(theirs)) for mine, theirs in map_.items()]
