"""Finds and ends the processes of runs, also after the death of the command that started them.

As a program, ``python watchdog.py VARIABLE FOLDER`` waits until its stdin is closed and then ends them.
It uses only the standard library, so that it starts fast.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

#: Seconds within which killed processes must be gone.
_LIMIT = 20.0


def processes_of(variable: str, folder: Path) -> list[int]:
    """Return the processes whose environment variable names ``folder`` or a folder in it."""
    pids = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and _is_of(pid, variable, folder)]


def end_all(variable: str, folder: Path) -> None:
    """Kill these processes; return when they are gone."""
    limit = time.monotonic() + _LIMIT
    while (pids := processes_of(variable, folder)) and time.monotonic() < limit:
        for pid in pids:
            _kill(pid, variable, folder)


@contextlib.contextmanager
def guard(variable: str, folder: Path) -> Iterator[None]:
    """End the processes of a folder after the block, however this process ends."""
    command = [sys.executable, "-I", __file__, variable, str(folder)]
    # A session of its own: Ctrl-C and the end of the terminal are not for it.
    dog = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        assert dog.stdin is not None
        dog.stdin.close()
        dog.wait()


def _kill(pid: int, variable: str, folder: Path) -> None:
    """Kill a process and wait for its end; a later process with the same id is left alone."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if _is_of(pid, variable, folder):
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                select.select([descriptor], [], [], 1.0)
    finally:
        os.close(descriptor)


def _is_of(pid: int, variable: str, folder: Path) -> bool:
    begin = f"{variable}={folder}".encode()
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or it is another user's
        return False
    return any(entry == begin or entry.startswith(begin + b"/") for entry in variables)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    end_all(sys.argv[1], Path(sys.argv[2]))
