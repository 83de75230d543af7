"""Checks of the options ``device_maps`` and ``devices``, as torch's TENSORPIPE has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from rpc_backends_agents.engine.option_checks import OptionChecks

DeviceMap = dict[torch.device, torch.device]


def check_device_maps(checks: OptionChecks, value: Any) -> dict[str, DeviceMap]:
    """Check the option ``device_maps``.

    :raises TypeError: it is not a dict of dicts of devices.
    :raises ValueError: two devices are mapped to one.
    :raises RuntimeError: torch knows no such device.
    """
    wanted = 'a dict such as {"worker1": {"cuda:0": "cuda:1"}}'
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise checks.wrong_type("device_maps", value, wanted)
    maps = {}
    for callee, map_ in value.items():
        if not isinstance(callee, str) or not isinstance(map_, Mapping):
            raise checks.wrong_type("device_maps", value, wanted)
        maps[callee] = _device_map(checks, callee, map_)
    return maps


def check_devices(checks: OptionChecks, value: Any) -> list[torch.device]:
    """Check the option ``devices``.

    :raises TypeError: it is not a list of devices.
    :raises ValueError: an entry is not an accelerator.
    :raises RuntimeError: torch knows no such device.
    """
    if value is None:
        return []
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise checks.wrong_type("devices", value, 'a list such as ["cuda:0", "cuda:1"]')
    devices = [_device(checks, "devices", device) for device in value]
    for device in devices:
        if device.type == "cpu":
            raise ValueError(
                f"devices contains {str(device)!r}; {checks.backend} needs accelerators there. Tensors "
                "on the CPU can be sent without it."
            )
    return devices


def _device_map(checks: OptionChecks, callee: str, map_: Mapping[Any, Any]) -> DeviceMap:
    name = f"device_maps[{callee!r}]"
    device_map: DeviceMap = {}
    reverse: DeviceMap = {}
    for key, value in map_.items():
        mine, theirs = _device(checks, name, key), _device(checks, name, value)
        if theirs in reverse:
            raise ValueError(
                f"{name}: `device_map` only supports 1-to-1 mapping, trying to map {mine} and "
                f"{reverse[theirs]} to {theirs}."
            )
        device_map[mine] = theirs
        reverse[theirs] = mine
    return device_map


def _device(checks: OptionChecks, name: str, value: Any) -> torch.device:
    if isinstance(value, bool) or not isinstance(value, str | int | torch.device):
        raise checks.wrong_type(f"an entry of {name}", value, 'a device such as "cuda:0"')
    try:
        device = torch.device(value)
    except RuntimeError as error:
        text = str(error).partition("\n")[0]
        # The type is torch's, which programs may expect.
        raise RuntimeError(f"{name} contains {value!r}, which is not a device: {text}") from error
    # A device without a number is the first one; a tensor always has a number.
    return (
        device if device.type == "cpu" or device.index is not None else torch.device(device.type, 0)
    )
