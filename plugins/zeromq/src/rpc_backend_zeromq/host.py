"""Which host this process is on, told apart from all others, also from containers of the same name."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK_NAMESPACE = Path("/proc/self/ns/net")


@dataclass(frozen=True)
class Host:
    """Where a process runs.

    :ivar kernel: the running kernel: containers of one machine share it, virtual machines do not.
        Processes that have it in common can use the same Unix sockets, if they see the same files.
    :ivar network: the network namespace: processes that have both in common reach each other on the
        loopback interface.
    """

    kernel: str
    network: str


def this_host() -> Host:
    """Return where this process runs."""
    try:
        kernel = _BOOT_ID.read_text().strip()
        namespace = _NETWORK_NAMESPACE.stat()
    except OSError:  # a system that is not Linux: its name has to do
        return Host(platform.node(), "")
    return Host(kernel, f"{namespace.st_dev}:{namespace.st_ino}")
