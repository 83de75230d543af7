"""A process that calls another by what is no backend of torch; it takes turns with the others."""

from __future__ import annotations

import contextlib
import os
import signal
from array import array

from rpc_backends_core.bench import accounting
from rpc_backends_core.bench.contestants import Contestant
from rpc_backends_core.bench.peers import ROWS, steps
from rpc_backends_core.bench.subjects import Subject


class Outsider(Contestant):
    """A process that calls another without torch's RPC.

    What it has started stands still with it.
    """

    def __init__(self, subject: Subject, seconds: float = 300) -> None:
        super().__init__(subject.label, 1, own=True, seconds=seconds)
        self.subject = subject

    def has(self, row: str) -> bool:
        """Return whether a row is measured of it."""
        return row in ROWS

    def latency(self, row: str, calls: int, seconds: float) -> array[float]:
        """Return the times of round trips."""
        kind = row.rpartition(".")[2]
        times: array[float] = self.call(0, steps.latency, kind, calls, seconds)
        return times

    def throughput(self, in_flight: int, seconds: float) -> float:
        """Return how many no-ops a second end."""
        return float(self.call(0, steps.throughput, in_flight, seconds))

    def size(self, kind: str, length: int, calls: int, seconds: float) -> array[float]:
        """Return the times of sending ``length`` bytes."""
        times: array[float] = self.call(0, steps.size, kind, length, calls, seconds)
        return times

    def start(self, pinned: bool) -> None:
        """Start what is called."""
        cores = sorted(os.sched_getaffinity(0)) if pinned else []
        self.call(0, steps.begin, self.subject.peer, cores[len(cores) // 2 :])

    def stop(self) -> None:
        """End it."""
        self.call(0, steps.end)

    def close(self) -> None:
        """End the process, and whatever it has started."""
        self._signal_started(signal.SIGKILL)
        super().close()

    def _signal(self, number: int) -> None:
        self._signal_started(number)
        super()._signal(number)

    def _signal_started(self, number: int) -> None:
        for worker in self.workers:
            for pid in accounting.descendants(worker.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
