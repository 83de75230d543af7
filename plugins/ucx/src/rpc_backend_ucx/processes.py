"""Identifies the process of a worker, so that workers on the same host can notice its end."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_NAMESPACES = Path("/proc/self/ns")
#: Fields of /proc/PID/stat between the process's name and its start time.
_BEFORE_START = 19


@dataclass(frozen=True)
class Process:
    """A process on a host.

    :ivar pid: its id; 0 if unknown.
    :ivar start: when it started, in the kernel's clock ticks; tells whether the id was reused.
    :ivar namespace: identifies the PID namespace that the id belongs to.
    :ivar ipc_namespace: identifies the IPC namespace, within which UCX shares memory.
    :ivar user_namespace: identifies the user namespace; processes can open each other's files within one.
    :ivar network_namespace: identifies the network namespace, within which UCX wakes workers up.
    """

    pid: int
    start: int
    namespace: str
    ipc_namespace: str
    user_namespace: str
    network_namespace: str


def this_process() -> Process:
    """Return this process."""
    try:
        stat = Path("/proc/self/stat").read_text(errors="replace")
        namespaces = [_namespace(kind) for kind in ("pid", "ipc", "user", "net")]
    except OSError:
        return Process(0, 0, "", "", "", "")
    start = int(stat.rpartition(")")[2].split()[_BEFORE_START])
    return Process(os.getpid(), start, *namespaces)


def can_watch() -> bool:
    """Return whether this process can watch for the end of another one (``pidfd_open``)."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def _namespace(kind: str) -> str:
    status = (_NAMESPACES / kind).stat()
    return f"{status.st_dev}:{status.st_ino}"
