"""A participant that calls another process without torch's RPC."""

from __future__ import annotations

import contextlib
import os
import signal
from types import ModuleType
from typing import ClassVar

from rpc_backends_bench import accounting
from rpc_backends_bench.participants import Participant
from rpc_backends_bench.peers import ROWS, worker_tasks
from rpc_backends_bench.subjects import Subject


class ExternalRunner(Participant):
    """A process that calls another without torch's RPC.

    Processes that it starts are suspended and ended together with it.
    """

    _tasks: ClassVar[ModuleType] = worker_tasks

    def __init__(self, subject: Subject, seconds: float = 300) -> None:
        super().__init__(subject.label, 1, own=True, seconds=seconds)
        self._peer = subject.peer

    def has(self, row: str) -> bool:
        """Return whether a row applies to it."""
        return row in ROWS

    def start(self, pinned: bool) -> None:
        """Start the process that is called."""
        cores = sorted(os.sched_getaffinity(0)) if pinned else []
        self.call(0, worker_tasks.begin, self._peer, cores[len(cores) // 2 :])

    def stop(self) -> None:
        """End the process that is called."""
        self.call(0, worker_tasks.end)

    def close(self) -> None:
        """End this process and all processes that it has started."""
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
