"""Identifies this process and its host, also among containers with the same name."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACES = Path("/proc/self/ns")
#: Fields of /proc/PID/stat between the process's name and its start time.
_BEFORE_START = 19
#: The largest process id of Linux.
MAX_PID = 2**22


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
        network = namespace("net")
    except OSError:  # not Linux: use the host name
        return Host(platform.node(), "")
    return Host(kernel, network)


@dataclass(frozen=True)
class Process:
    """A process on a host.

    :ivar pid: its id; 0 if unknown.
    :ivar start: when it started, in the kernel's clock ticks; tells whether the id was reused.
    :ivar namespace: identifies the PID namespace that the id belongs to.
    """

    pid: int
    start: int
    namespace: str

    def seen_from(self, other: Process) -> tuple[int, int]:
        """Return the id and the start time, as another process of the same kernel may use them.

        :returns: zeros if the id means another process there, or is unknown.
        """
        is_seen = other.pid != 0 and other.namespace == self.namespace
        return (self.pid, self.start) if is_seen else (0, 0)


def this_process() -> Process:
    """Return this process; without its id if ``/proc`` is that of another PID namespace."""
    try:
        stat = Path("/proc/self/stat").read_text(errors="replace")
        pids = namespace("pid")
    except OSError:
        return Process(0, 0, "")
    if int(stat.split()[0]) != os.getpid():
        return Process(0, 0, pids)
    start = int(stat.rpartition(")")[2].split()[_BEFORE_START])
    return Process(os.getpid(), start, pids)


def namespace(kind: str) -> str:
    """Return what identifies one of this process's namespaces: ``net``, ``pid``, ``ipc`` or ``user``.

    :raises OSError: there is no ``/proc``.
    """
    status = (_NAMESPACES / kind).stat()
    return f"{status.st_dev}:{status.st_ino}"
