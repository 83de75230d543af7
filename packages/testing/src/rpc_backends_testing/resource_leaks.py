"""Finds what a process has open, and what processes have left on the machine."""

from __future__ import annotations

import contextlib
import gc
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The folder of POSIX shared memory and semaphores.
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Open:
    """What a process has open.

    :ivar threads: the number of its threads.
    :ivar files: the targets of its descriptors, sorted; of sockets the protocol.
    """

    threads: int
    files: tuple[str, ...]

    def beyond(self, before: Open) -> str:
        """Return in words what is open and was not ``before``, or "nothing"."""
        more = Counter(self.files) - Counter(before.files)
        more["thread"] = self.threads - before.threads
        return ", ".join(f"{count} x {what}" for what, count in (+more).items()) or "nothing"


def opened(me: Any = None, *, collect: bool = True) -> Open:
    """Return what this process has open. This is a step.

    :param collect: whether garbage is collected first.
    """
    del me
    if collect:
        gc.collect()
    kinds = _sockets()
    files = []
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this listing
            target = str(fd.readlink())
            files.append(kinds.get(target, re.sub(r"#?\d+", "N", target)))
    return Open(len(list(Path("/proc/self/task").iterdir())), tuple(sorted(files)))


def _sockets() -> dict[str, str]:
    kinds = {}
    for table, column in (("tcp", 9), ("tcp6", 9), ("unix", 6), ("udp", 9)):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            kinds[f"socket:[{line.split()[column]}]"] = f"{table} socket"
    return kinds


def shared_memory() -> frozenset[str]:
    """Return the names of this user's objects in shared memory."""
    names = set()
    with contextlib.suppress(FileNotFoundError):  # a system without shared memory
        for path in SHARED_MEMORY.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_uid == os.geteuid():
                    names.add(path.name)
    return frozenset(names)


def abandoned(names: frozenset[str]) -> list[str]:
    """Return those of ``names`` in shared memory that still exist and that no process has open.

    Other programs use shared memory at the same time, and have open what they use.
    """
    there = names & shared_memory()
    if not there:
        return []
    used = {path for process in Path("/proc").glob("[0-9]*") for path in _used(process)}
    return sorted(name for name in there if str(SHARED_MEMORY / name) not in used)


def shared_memory_in_use(me: Any = None) -> frozenset[str]:
    """Return the names of the objects in shared memory that this process has open. This is a step."""
    del me
    used = set(_used(Path("/proc/self")))
    return frozenset(name for name in shared_memory() if str(SHARED_MEMORY / name) in used)


def _used(process: Path) -> Iterator[str]:
    """Yield the paths of the files that a process has open, and of the shared memory that it has mapped.

    :param process: its folder in /proc.
    """
    with contextlib.suppress(OSError):  # the process has ended, or is another user's
        for line in (process / "maps").read_text(errors="replace").splitlines():
            _, _, path = line.partition(str(SHARED_MEMORY))
            if path:
                yield f"{SHARED_MEMORY}{path}"
        for fd in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                yield str(fd.readlink())
