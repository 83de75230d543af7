"""Whether the process of another worker has ended; known only for processes of this host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

_PROC = Path("/proc/self")
_BOOT, _NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
_DEAD = ("Z", "X", "x")
#: The largest process id of Linux. Identities of other processes come from a store.
_LARGEST_PID = 1 << 22


def this_process() -> list[str | int]:
    """Return what identifies this process: its host, its id and when it started; empty if unknown."""
    pid = os.getpid()
    try:
        # Containers of one machine have different namespaces of process ids.
        host = f"{_BOOT.read_text().strip()} {_NAMESPACE.readlink()}"
        if _PROC.readlink().name != str(pid):  # it is that of another namespace
            return []
        return [host, pid, _state(pid)[1]]
    except OSError:  # there is no /proc
        return []


def is_local(process: Any) -> bool:
    """Return whether ``process``, from :func:`this_process` of another worker, runs on this host."""
    return (
        isinstance(process, list)
        and [type(part) for part in process] == [str, int, str]
        and 0 < process[1] <= _LARGEST_PID
        and process[:1] == this_process()[:1]
    )


def has_ended(process: list[Any]) -> bool:
    """Return whether a process of this host has certainly ended."""
    _, pid, started = process
    try:
        os.kill(pid, 0)
        state, begin = _state(pid)
    except ProcessLookupError:
        return True
    except OSError:  # another user's process, which /proc may hide
        return False
    return begin != started or state in _DEAD


def _state(pid: int) -> tuple[str, str]:
    """Return the state of a process, and when it started."""
    # after the name, which may have spaces and parentheses
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return fields[0], fields[19]
