"""Device maps: the devices that each worker declares, and the check that they are consistent.

Every backend with device maps uses these checks. The rules are those of torch's own TENSORPIPE; the error
messages begin with the same words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

DeviceMap = dict[torch.device, torch.device]


@dataclass(frozen=True)
class WorkerDevices:
    """The devices that one worker declares.

    :ivar accelerator: the type of its accelerators (for example ``cuda``); None if it has none.
    :ivar count: the number of its accelerators.
    :ivar maps: by callee, a map from this worker's devices to the callee's devices.
    :ivar devices: the devices that RPC may use; an empty list means the devices in the maps.
    """

    name: str
    accelerator: str | None
    count: int
    maps: dict[str, DeviceMap]
    devices: list[torch.device]

    @classmethod
    def of_this_process(cls, name: str, options: Any) -> WorkerDevices:
        """Return the devices of this process, from its options and its hardware."""
        # The other functions raise in torch 2.6 and 2.7 if there is no accelerator.
        available = torch.accelerator.is_available()
        accelerator = torch.accelerator.current_accelerator() if available else None
        count = torch.accelerator.device_count() if accelerator is not None else 0
        return cls(
            name,
            accelerator.type if accelerator is not None and count else None,
            count,
            dict(options.device_maps),
            list(options.devices),
        )

    def to_json(self) -> dict[str, Any]:
        """Return values that JSON can represent; :meth:`from_json` reads them."""
        return {
            "name": self.name,
            "accelerator": self.accelerator,
            "count": self.count,
            "maps": {
                callee: [[str(mine), str(theirs)] for mine, theirs in map_.items()]
                for callee, map_ in self.maps.items()
            },
            "devices": [str(device) for device in self.devices],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> WorkerDevices:
        """Read what :meth:`to_json` returned.

        :raises Exception: ``value`` is not in that form; the type depends on what is wrong.
        """
        name, accelerator, count = value["name"], value["accelerator"], value["count"]
        if not isinstance(name, str) or not isinstance(accelerator, str | None):
            raise ValueError("its name or accelerator is not a string")  # noqa: TRY004, bad data, no bug
        if type(count) is not int or count < 0:
            raise ValueError("its device count is not a number")
        return cls(
            name,
            accelerator,
            count,
            {
                callee: {torch.device(mine): torch.device(theirs) for mine, theirs in pairs}
                for callee, pairs in value["maps"].items()
            },
            [torch.device(device) for device in value["devices"]],
        )

    def has(self, devices: Iterable[torch.device]) -> bool:
        """Return whether this worker has all of ``devices``."""
        return all(
            device.type == "cpu"
            or (
                device.type == self.accelerator
                and device.index is not None
                and 0 <= device.index < self.count
            )
            for device in devices
        )


def check(workers: list[WorkerDevices], *, complete: bool) -> None:
    """Check that the device maps of all workers name devices that the source and the target have.

    :param complete: whether ``workers`` is the whole group. If so, a map to any other worker is an error.
    :raises ValueError: a device or a map is wrong; the message names the worker whose options are wrong.
        It depends on ``workers`` alone: all workers that check the same list raise the same error.
    """
    by_name = {worker.name: worker for worker in workers}
    for worker in workers:
        _check_devices(worker)
    for worker in workers:
        absent = sorted(worker.maps.keys() - by_name.keys())
        if complete and absent:
            raise ValueError(
                f"Node {worker.name} has invalid target node names in its device maps: "
                f"{', '.join(absent)}; the workers are {', '.join(by_name)}"
            )
        for target, map_ in worker.maps.items():
            _check_map(worker, target, by_name.get(target), map_)


def reverse_maps(mine: WorkerDevices, workers: Iterable[WorkerDevices]) -> dict[str, DeviceMap]:
    """Return the maps for answers: for each worker that maps to this one, its map inverted."""
    return {
        worker.name: {theirs: own for own, theirs in worker.maps[mine.name].items()}
        for worker in workers
        if mine.name in worker.maps
    }


def used_devices(mine: WorkerDevices, reverse: Mapping[str, DeviceMap]) -> list[torch.device]:
    """Return the devices that RPC uses here: the declared ones, or else all devices in the maps."""
    devices = set(mine.devices)
    if not devices:
        for map_ in (*mine.maps.values(), *reverse.values()):
            devices.update(map_)
        devices.discard(torch.device("cpu"))
    return sorted(devices, key=lambda device: (device.type, device.index or 0))


def initialise(devices: list[torch.device]) -> None:
    """Start the accelerator's runtime if RPC uses it.

    A request from a peer may need the runtime before this program has used the device.
    """
    if devices and torch.accelerator.is_available():
        module = torch.get_device_module(torch.accelerator.current_accelerator())
        if hasattr(module, "init"):
            module.init()


def _check_devices(worker: WorkerDevices) -> None:
    if len(set(worker.devices)) != len(worker.devices):
        raise ValueError(f"Node {worker.name} has duplicated devices: {_names(worker.devices)}")
    if not worker.has(worker.devices):
        raise ValueError(
            f"Node {worker.name} has devices with invalid indices: {_names(worker.devices)}; "
            f"it has {_inventory(worker)}"
        )


def _check_map(
    source: WorkerDevices, target_name: str, target: WorkerDevices | None, map_: DeviceMap
) -> None:
    of = f"in its device map for {target_name}: {_show(map_)}"
    if len(set(map_.values())) != len(map_):
        raise ValueError(f"Node {source.name} has duplicated target devices {of}")
    if source.devices:
        if not set(map_) <= set(source.devices):
            raise ValueError(
                f"Node {source.name} has unexpected source devices {of}; "
                f"its devices are {_names(source.devices)}"
            )
    elif not source.has(map_):
        raise ValueError(
            f"Node {source.name} has source devices with invalid indices {of}; "
            f"it has {_inventory(source)}"
        )
    if target is None:
        return
    if target.devices:
        if not set(map_.values()) <= set(target.devices):
            raise ValueError(
                f"Node {source.name} has unexpected target devices {of}; "
                f"the devices of {target_name} are {_names(target.devices)}"
            )
    elif not target.has(map_.values()):
        raise ValueError(
            f"Node {source.name} has target devices with invalid indices {of}; "
            f"{target_name} has {_inventory(target)}"
        )


def _names(devices: Iterable[torch.device]) -> str:
    return ", ".join(map(str, devices))


def _show(map_: DeviceMap) -> str:
    return ", ".join(f"{mine} -> {theirs}" for mine, theirs in map_.items())


def _inventory(worker: WorkerDevices) -> str:
    return f"{worker.count} {worker.accelerator} device(s)" if worker.count else "no accelerator"
