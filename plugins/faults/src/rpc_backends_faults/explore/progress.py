"""Measures how long a program waits: time in which it computes or needs a processor hardly counts.

On a busy machine, a healthy program takes many times longer for the same work. The kernel counts for
each thread how long it ran and how long it was ready to run. Both differ from waiting for a message.
A thread that polls, as one of TENSORPIPE does, also waits for a processor, but each time it gets one it
runs only for microseconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

#: What a second counts at least, also if a thread runs all the time: a program may spin for ever.
_LEAST = 0.25
#: Seconds between two looks at the threads.
_EVERY = 1.0

#: Seconds that a thread runs between two sleeps, on average, if it computes. One that only polls runs
#: less.
_COMPUTES = 0.0005
#: The thread of TENSORPIPE that polls all the time, also while every other thread waits.
_POLLS = "TP_SHM_reactor"

#: For each thread the seconds in which it ran, the seconds in which it was ready but had no processor,
#: and how many times it went to sleep by itself.
Times = dict[tuple[int, int], tuple[float, float, int]]


class Waiting:
    """Counts the seconds in which all threads of a program wait.

    :ivar seconds: the count since the last call of :meth:`restart`.
    """

    def __init__(self, processes: Callable[[], Sequence[int]], every: float = _EVERY) -> None:
        """:param processes: returns the ids of the processes."""
        self._processes = processes
        self._every = every
        self._before: Times = {}
        self._at: float | None = None
        self._began: float | None = None
        self.seconds = 0.0

    def restart(self) -> None:
        """Count from 0: the program made progress."""
        self._at = self._began = None
        self.seconds = 0.0

    def look(self, now: float) -> None:
        """Count the time since the last look."""
        if self._began is None:
            self._began = now
        # A program with progress every second costs no look at its threads.
        if now - (self._began if self._at is None else self._at) < self._every:
            return
        times = thread_times(self._processes())
        if self._at is None:
            self.seconds = now - self._began
        else:
            passed = now - self._at
            busy = busiest(self._before, times)
            self.seconds += passed * (1 - min(busy / passed, 1 - _LEAST))
            # Linux counts a wait for a processor when it ends, so part of it may belong to earlier looks.
            earlier = max(busy - passed, 0.0) * (1 - _LEAST)
            self.seconds = max(self.seconds - earlier, 0.0)
        self._before, self._at = times, now


def busiest(before: Times, after: Times) -> float:
    """Return the most seconds in which one thread ran or needed a processor between two moments."""
    most = 0.0
    for thread, times in after.items():
        earlier = before.get(thread, (0.0, 0.0, 0))
        ran, waited, sleeps = (new - old for new, old in zip(times, earlier, strict=True))
        most = max(most, ran + waited if ran >= sleeps * _COMPUTES else ran)
    return most


def kept_waiting(processes: Sequence[int]) -> float:
    """Return the most seconds that one thread of these processes had no processor since its start."""
    return max((waited for _, waited, _ in thread_times(processes).values()), default=0.0)


def thread_times(processes: Sequence[int]) -> Times:
    """Return the times of all threads but TENSORPIPE's that polls; none if the kernel counts none."""
    times: Times = {}
    for pid in processes:
        try:
            threads = list(Path(f"/proc/{pid}/task").iterdir())
        except OSError:  # it has ended
            continue
        for thread in threads:
            with contextlib.suppress(OSError, ValueError):
                if (thread / "comm").read_text(errors="replace").strip() == _POLLS:
                    continue
                ran, waited, _ = map(int, (thread / "schedstat").read_text().split())
                status = (thread / "status").read_text(errors="replace")
                sleeps = status.rpartition("\nvoluntary_ctxt_switches:")[2]
                times[pid, int(thread.name)] = (ran / 1e9, waited / 1e9, int(sleeps.split()[0]))
    return times
