"""Participants: the processes that are measured. While one runs a block, all others are suspended."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar, TypeAlias

from rpc_backends_bench import baselines, worker_tasks
from rpc_backends_bench.plan import BY_ID
from rpc_backends_bench.results import BASELINE
from rpc_backends_bench.subjects import Subject
from rpc_backends_processes import Done, Failure, Step, Template, WorkerError, Workers, environ

#: How long a task may take, and how much longer for each worker: on few cores the workers take turns.
TASK_TIMEOUT_S, TASK_TIMEOUT_PER_WORKER_S = 90.0, 3.0
#: How long the other workers may still take for a task after it has failed in one.
_FAILURE_GRACE_S = 2.0
#: How long after the request all workers of a group begin a task together.
_START_DELAY_S = 0.01
#: How long to wait after SIGCONT until the processes run again.
_RESUME_DELAY_S = 0.002
#: Makes torch's agents and Gloo use the loopback interface in workers.
LOOPBACK = {"TP_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}

#: Times of single calls in seconds, by the label of their participant in the report.
Times: TypeAlias = "dict[str, array[float]]"


class ParticipantError(Exception):
    """A participant's processes have failed; the text says how in one line.

    :ivar detail: tracebacks, and the output of the processes.
    """

    def __init__(self, text: str, detail: str = "") -> None:
        super().__init__(text)
        self.detail = detail


@functools.cache
def template(own: bool) -> Template:
    """Return the template that workers are forked from.

    :param own: load no package that extends torch; by default they load as in any program that imports
        torch.
    """
    variables = {**LOOPBACK, **environ()}
    if own:
        variables["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    prepare = () if own else (worker_tasks.find_backends,)
    return Template(preload=worker_tasks.PRELOAD, prepare=prepare, variables=variables)


class Participant:
    """A set of processes; the first makes the calls that are measured.

    They are suspended (SIGSTOP) while another participant runs. Otherwise they would disturb its
    measurement: TensorPipe polls, so an idle worker takes half a core.

    :param own: run without any package that extends torch.
    :param seconds: after this time the processes are ended in any case.
    :param env: additional environment variables.
    """

    #: The module whose ``latency``, ``throughput`` and ``size`` make the calls.
    _tasks: ClassVar[ModuleType]

    def __init__(
        self,
        label: str,
        size: int,
        *,
        own: bool,
        seconds: float,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.label = label
        self.workers = Workers(size, seconds=seconds, env=env, template=template(own))

    def open(self) -> None:
        """Start the processes."""
        with _worker_errors():
            self.workers.__enter__()

    def stop(self) -> object:
        """Leave the group, or end the called process. The default does nothing."""
        return None

    def close(self) -> None:
        """End the processes, without shutting down their group."""
        self.workers.__exit__()

    # --- running tasks in the processes ---

    def run(self, task: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Run a task in all workers at once; return the results.

        :raises ParticipantError: the task failed in a worker.
        """
        with _worker_errors():
            return self._results([worker.start(task, *args, **kwargs) for worker in self.workers])

    def run_each(self, task: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run a task in the first ``len(arguments)`` workers at once, each with its own arguments."""
        with _worker_errors():
            return self._results(
                [self.workers[rank].start(task, *own) for rank, own in enumerate(arguments)]
            )

    def call(self, rank: int, task: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a task in one worker."""
        with _worker_errors():
            return self._results([self.workers[rank].start(task, *args, **kwargs)])[0]

    def pin(self) -> None:
        """Keep the first process on one half of the cores and all others on the other half."""
        cores = sorted(os.sched_getaffinity(0))
        half = len(cores) // 2
        if half:
            for rank, worker in enumerate(self.workers):
                os.sched_setaffinity(worker.pid, cores[:half] if rank == 0 else cores[half:])

    def suspend(self) -> None:
        """Stop the processes (SIGSTOP)."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the processes continue (SIGCONT)."""
        self._signal(signal.SIGCONT)
        time.sleep(_RESUME_DELAY_S)

    # --- measuring calls ---

    def has(self, row: str) -> bool:
        """Return whether a row applies to this participant."""
        return True

    def latency(self, row: str, calls: int, seconds: float) -> Times:
        """Return the times of round trips."""
        kind, how = row.rpartition(".")[2], {"loaded": True} if ".loaded." in row else {}
        return {self.label: self.call(0, self._tasks.latency, kind, calls, seconds, **how)}

    def throughput(self, in_flight: int, seconds: float) -> float:
        """Return the number of no-ops per second."""
        return float(self.call(0, self._tasks.throughput, in_flight, seconds))

    def size(self, kind: str, length: int, calls: int, seconds: float) -> Times:
        """Return the times of sending ``length`` bytes."""
        return {self.label: self.call(0, self._tasks.size, kind, length, calls, seconds)}

    def _results(self, running: Sequence[Step]) -> list[Any]:
        """Wait for all tasks, or briefly after one has failed; return what they returned."""
        timeout = TASK_TIMEOUT_S + TASK_TIMEOUT_PER_WORKER_S * self.workers.size
        deadline, failed = time.monotonic() + timeout, None
        waiting = list(running)
        while waiting:
            over = [worker for worker in waiting if worker.is_over(0.02 / len(waiting))]
            waiting = [worker for worker in waiting if worker not in over]
            for worker in over:
                outcome = worker.outcome()
                if isinstance(outcome, Failure) and failed is None:
                    failed = outcome
                    deadline = min(deadline, time.monotonic() + _FAILURE_GRACE_S)
            if waiting and time.monotonic() > deadline:
                if failed is None:
                    self.workers.give_up(f"the task did not end within {timeout:g} s")
                break
        if failed is not None:
            raise ParticipantError(f"{failed.kinds[0]}: {failed.text}", failed.trace)
        outcomes = [worker.outcome() for worker in running]
        return [outcome.value for outcome in outcomes if isinstance(outcome, Done)]

    def _signal(self, number: int) -> None:
        for worker in self.workers:
            if worker.status is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, number)


class Group(Participant):
    """The workers of an RPC group under a backend."""

    _tasks: ClassVar[ModuleType] = worker_tasks

    def __init__(
        self,
        subject: Subject,
        size: int,
        seconds: float = 300,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(subject.label, size, own=subject.own, seconds=seconds, env=env)
        self.subject = subject
        self._store: Any = None
        self._url = ""

    def start(self) -> float:
        """Call ``init_rpc`` in all workers; return the seconds until the last one has returned."""
        self._host_store()
        size = self.workers.size
        return duration(
            self.run(worker_tasks.join, self.subject, self._url, size, common_start(size))
        )

    def join(self, rank: int) -> float:
        """Let one worker join a dynamic group, rank 0 first; return how long that took."""
        if rank == 0:
            self._host_store()
        return duration([self.call(rank, worker_tasks.join, self.subject, self._url, None)])

    def stop(self) -> float:
        """Call ``shutdown`` in all workers; return the seconds until the last one has returned."""
        return duration(self.run(worker_tasks.leave, common_start(self.workers.size)))

    def close(self) -> None:
        """End the processes, and then the store."""
        super().close()
        self._store = None

    def _host_store(self) -> None:
        """Host a new store in this process, as a launcher does."""
        from torch.distributed import TCPStore

        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._url = f"tcp://127.0.0.1:{self._store.port}"


class Baselines(Participant):
    """Two processes without RPC that measure a memory copy and a bare socket."""

    def __init__(self) -> None:
        super().__init__("baselines", 2, own=True, seconds=900)

    def start(self) -> None:
        """Connect the two processes."""
        self.call(0, baselines.connect, self.call(1, baselines.serve))

    def has(self, row: str) -> bool:
        """Return whether a row has baselines."""
        return bool(BY_ID[row].baselines)

    def latency(self, row: str, calls: int, seconds: float) -> Times:
        """Return the times of a small message there and back over the socket."""
        return self._measure(("socket",), "echo", baselines.SMALL, calls, seconds)

    def size(self, kind: str, length: int, calls: int, seconds: float) -> Times:
        """Return the times of moving ``length`` bytes."""
        return self._measure(("memcpy", "socket"), kind, length, calls, seconds)

    def _measure(
        self, names: Sequence[str], kind: str, length: int, calls: int, seconds: float
    ) -> Times:
        block = baselines.block
        return {
            f"{BASELINE}{name}": self.call(0, block, name, kind, length, calls, seconds)
            for name in names
        }


def common_start(count: int) -> float:
    """Return the earliest time at which ``count`` workers that are asked now can begin together."""
    return time.perf_counter() + _START_DELAY_S + 0.001 * count


def duration(spans: Iterable[worker_tasks.Span]) -> float:
    """Return the seconds from the first start to the last end."""
    begins, ends = zip(*spans, strict=True)
    return float(max(ends) - min(begins))


@contextlib.contextmanager
def _worker_errors() -> Iterator[None]:
    try:
        yield
    except WorkerError as error:
        text = str(error)
        raise ParticipantError(text.splitlines()[0], text) from error
    except OSError as error:  # on the connection to a worker
        raise ParticipantError(f"a worker has ended ({error})") from error
