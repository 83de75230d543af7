"""What has become of a process that does not answer: it is stopped, or it has ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

_PAUSE = 0.01
#: The place of the exit code in ``/proc/PID/stat``, counted from the process's state.
_EXIT_CODE = 49


def fate(pid: int, seconds: float = 0.0) -> str:
    """Say why a process cannot answer, as the end of a sentence about it; empty if it runs.

    :param seconds: how long to wait for the process to end if it runs.
    """
    return fates([pid], seconds)[pid]


def fates(pids: Collection[int], seconds: float) -> dict[int, str]:
    """Say the same of several processes, after at most ``seconds`` altogether."""
    end = time.monotonic() + seconds
    while True:
        by_pid = {pid: _fate(pid) for pid in pids}
        if all(by_pid.values()) or time.monotonic() >= end:
            return by_pid
        time.sleep(_PAUSE)


def _fate(pid: int) -> str:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return "has ended"
    match fields[:1]:
        case ["T" | "t"]:
            return "is stopped by a signal or a debugger"
        case [] | ["X" | "x"]:
            return "has ended"
        case ["Z"]:
            # Its parent has not asked for the exit code yet. It is 0 if this process may not see it.
            return _ended(int(fields[_EXIT_CODE]) if len(fields) > _EXIT_CODE else 0)
    return ""


def _ended(code: int) -> str:
    if os.WIFSIGNALED(code):
        number = os.WTERMSIG(code)
        try:
            return f"was killed by {signal.Signals(number).name}"
        except ValueError:
            return f"was killed by signal {number}"
    status = os.WEXITSTATUS(code)
    return f"has ended with exit status {status}" if status else "has ended"
