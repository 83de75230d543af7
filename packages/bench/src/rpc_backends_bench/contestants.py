"""What takes turns: two or more processes under one backend, or two that are the machine's limit."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, ClassVar

from rpc_backends_bench import limits, steps
from rpc_backends_bench.subjects import Subject
from rpc_backends_cli.processes import Done, Failure, Step, Template, WorkerError, Workers
from rpc_backends_cli.processes.template import environ

#: Seconds that a step has.
PATIENCE = 90.0
#: Seconds more for each worker of the group: on few cores, they wait for each other.
PATIENCE_A_WORKER = 3.0
#: Seconds that the other workers have to end a step when one has failed.
_LAST_WORDS = 2.0
#: Seconds from asking all workers of a group to the moment when all begin.
_LEAD = 0.01
#: Seconds in which processes that stood still are running again.
_WAKING = 0.002
#: Where workers find the interface of which torch's agents and Gloo take the address: only this host.
_LOOPBACK = {"TP_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}


class ContestantError(Exception):
    """Processes that are measured have failed; the text says how in a line.

    :ivar detail: tracebacks and what the processes printed.
    """

    def __init__(self, text: str, detail: str = "") -> None:
        super().__init__(text)
        self.detail = detail


@functools.cache
def template(own: bool) -> Template:
    """Return how workers start: as in a program that imports torch, with packages of backends or without.

    :param own: without, as it is where none is installed.
    """
    variables = {**_LOOPBACK, **environ(), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    if own:
        variables["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    prepare = () if own else (steps.find_backends,)
    return Template(preload=steps.PRELOAD, prepare=prepare, variables=variables)


class Contestant:
    """Processes that can be stopped while others have their turn.

    TensorPipe looks for messages all the time: an idle worker takes half a core from those that are
    measured.
    """

    def __init__(self, label: str, size: int, *, own: bool, seconds: float) -> None:
        self.label = label
        self.workers = Workers(size, seconds=seconds, template=template(own))

    def open(self) -> None:
        """Start the processes."""
        with _explained():
            self.workers.__enter__()

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Run a step in all workers at once.

        :raises ContestantError: it failed in one.
        """
        with _explained():
            return self._ended([one.start(function, *args, **kwargs) for one in self.workers])

    def run_each(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        """Run a step in the first workers at once, each with arguments of its own."""
        with _explained():
            return self._ended(
                [self.workers[rank].start(function, *one) for rank, one in enumerate(arguments)]
            )

    def call(self, rank: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a step in one worker."""
        with _explained():
            return self._ended([self.workers[rank].start(function, *args, **kwargs)])[0]

    def pin(self) -> None:
        """Keep the first process on one half of the cores and all others on the other half."""
        cores = sorted(os.sched_getaffinity(0))
        half = len(cores) // 2
        if half:
            for rank, worker in enumerate(self.workers):
                os.sched_setaffinity(worker.pid, cores[:half] if rank == 0 else cores[half:])

    def freeze(self) -> None:
        """Stop the processes where they are."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)
        time.sleep(_WAKING)

    def close(self) -> None:
        """End the processes; those in a group are not asked to shut it down."""
        self.workers.__exit__()

    def _ended(self, running: Sequence[Step]) -> list[Any]:
        """Wait for all, a moment only when one has failed; return what they returned."""
        patience = PATIENCE + PATIENCE_A_WORKER * self.workers.size
        deadline, failed = time.monotonic() + patience, None
        waiting = list(running)
        while waiting:
            over = [one for one in waiting if one.is_over(0.02 / len(waiting))]
            waiting = [one for one in waiting if one not in over]
            for one in over:
                outcome = one.outcome()
                if isinstance(outcome, Failure) and failed is None:
                    failed = outcome
                    deadline = min(deadline, time.monotonic() + _LAST_WORDS)
            if waiting and time.monotonic() > deadline:
                if failed is None:
                    self.workers.give_up(f"not done in {patience:g} s")
                break
        if failed is not None:
            raise ContestantError(f"{failed.kinds[0]}: {failed.text}", failed.trace)
        outcomes = [one.outcome() for one in running]
        return [outcome.value for outcome in outcomes if isinstance(outcome, Done)]

    def _signal(self, number: int) -> None:
        for worker in self.workers:
            if worker.status is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, number)


class Caller(Contestant, ABC):
    """Processes of which the first calls another; what it calls by is a matter of its steps."""

    #: The module whose ``latency``, ``throughput`` and ``size`` make the calls.
    _steps: ClassVar[ModuleType]

    def __init__(self, subject: Subject, size: int, *, own: bool, seconds: float) -> None:
        super().__init__(subject.label, size, own=own, seconds=seconds)
        self.subject = subject

    def has(self, row: str) -> bool:
        """Return whether a row is measured of it."""
        return True

    def latency(self, row: str, calls: int, seconds: float) -> array[float]:
        """Return the times of round trips."""
        kind, how = row.rpartition(".")[2], {"loaded": True} if ".loaded." in row else {}
        times: array[float] = self.call(0, self._steps.latency, kind, calls, seconds, **how)
        return times

    def throughput(self, in_flight: int, seconds: float) -> float:
        """Return how many no-ops a second end."""
        return float(self.call(0, self._steps.throughput, in_flight, seconds))

    def size(self, kind: str, length: int, calls: int, seconds: float) -> array[float]:
        """Return the times of sending ``length`` bytes."""
        times: array[float] = self.call(0, self._steps.size, kind, length, calls, seconds)
        return times

    @abstractmethod
    def stop(self) -> object:
        """End what it calls by, in all processes."""


class Group(Caller):
    """Workers of a group under a backend."""

    _steps: ClassVar[ModuleType] = steps

    def __init__(self, subject: Subject, size: int, seconds: float = 300) -> None:
        super().__init__(subject, size, own=subject.own, seconds=seconds)
        self._store: Any = None
        self._url = ""

    def meet(self) -> None:
        """Host a new store, as a launcher does."""
        from torch.distributed import TCPStore

        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._url = f"tcp://127.0.0.1:{self._store.port}"

    def start(self) -> float:
        """Call ``init_rpc`` for a static group of all; return the seconds from first to last."""
        self.meet()
        size, at = self.workers.size, soon(self.workers.size)
        return length(
            self.run_each(
                steps.join, [(self.subject, self._url, rank, size, at) for rank in range(size)]
            )
        )

    def join(self, rank: int) -> float:
        """Let one worker join a dynamic group, rank 0 first; return how long that takes."""
        if rank == 0:
            self.meet()
        return length([self.call(rank, steps.join, self.subject, self._url, rank, None)])

    def stop(self) -> float:
        """Call ``shutdown`` in all; return the seconds from first to last."""
        return length(self.run(steps.leave, soon(self.workers.size)))

    def close(self) -> None:
        """End the processes, and the store after them."""
        super().close()
        self._store = None


class Limits(Contestant):
    """Two processes with a socket between them and nothing of RPC."""

    def __init__(self) -> None:
        super().__init__("limits", 2, own=True, seconds=900)

    def start(self) -> None:
        """Connect them."""
        self.call(0, limits.connect, self.call(1, limits.serve))


def soon(count: int) -> float:
    """Return the time at which ``count`` workers that are asked now can all begin."""
    return time.perf_counter() + _LEAD + 0.001 * count


def length(spans: Iterable[steps.Span]) -> float:
    """Return the seconds from the first begin to the last end."""
    all_of_them = list(spans)
    return max(end for _, end in all_of_them) - min(begin for begin, _ in all_of_them)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except WorkerError as error:
        text = str(error)
        raise ContestantError(text.splitlines()[0], text) from error
    except OSError as error:  # the connection to a worker
        raise ContestantError(f"a worker has ended ({error})") from error
