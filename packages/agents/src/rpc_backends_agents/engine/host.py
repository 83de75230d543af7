"""Identifies the host of this process, also among containers with the same name."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK_NAMESPACE = Path("/proc/self/ns/net")


@dataclass(frozen=True)
class Host:
    """Where a process runs.

    :ivar kernel: identifies the running kernel. Containers of one machine share it, virtual machines
        do not. Processes on the same kernel can use the same Unix sockets if they see the same files.
    :ivar network: identifies the network namespace. Processes with the same kernel and the same
        network namespace can reach each other on the loopback interface.
    """

    kernel: str
    network: str


def this_host() -> Host:
    """Return the host of this process."""
    try:
        kernel = _BOOT_ID.read_text().strip()
        namespace = _NETWORK_NAMESPACE.stat()
    except OSError:  # not Linux: use the host name
        return Host(platform.node(), "")
    return Host(kernel, f"{namespace.st_dev}:{namespace.st_ino}")
