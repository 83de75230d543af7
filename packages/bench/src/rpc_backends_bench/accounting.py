"""Read the memory, threads, files and processor time of a process from Linux."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from pathlib import Path

_MADV_POPULATE_WRITE = 23


def inventory() -> dict[str, int]:
    """Return what this process holds: private memory in bytes, threads, open file descriptors."""
    private = 0
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith(("Private_Clean:", "Private_Dirty:")):
            private += int(line.split()[1]) * 1024
    return {
        "memory": private,
        "threads": len(os.listdir("/proc/self/task")),  # noqa: PTH208 - only the names are counted
        "files": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
    }


def processor_times(*pids: int) -> list[float]:
    """Return the processor time of each process in seconds, summed over its threads."""
    # This expression is the id of a process's CPU clock: see clock_getcpuclockid(3).
    return [time.clock_gettime(~pid << 3 | 2) for pid in pids]


def descendants(pid: int) -> list[int]:
    """Return the ids of a process's children, their children, and so on."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # the process has ended
                # The name in parentheses may contain any character, so split behind it.
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    pids, look = [], [pid]
    while look:
        new = children.get(look.pop(), [])
        pids += new
        look += new
    return pids


def own_memory() -> None:
    """Copy the memory pages that this fork shares with its parent, if the kernel supports it."""
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
        addresses, rights, _, _, inode, *_ = line.split()
        if rights == "rw-p" and inode == "0":
            begin, end = (int(address, 16) for address in addresses.split("-"))
            madvise(
                begin, end - begin, _MADV_POPULATE_WRITE
            )  # fails on an old kernel, without harm
