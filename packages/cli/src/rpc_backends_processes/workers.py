"""Worker processes that run one step after the other at the request of their parent.

A worker lives until its `Workers` ends. A scenario is a sequence of steps, and the parent waits for
their results instead of sleeping::

    with Workers(3) as workers:
        workers.run(join, "file:///...")             # a step on all at once
        assert workers[0].call(ask, "worker1") == 4  # a step on one
        waiting = workers[1].start(hear_from, "worker2")
        workers[2].kill()
        assert "eof" in waiting.error().text         # the outcome of a step that was started earlier

A step is a module-level function. Its first argument is the `WorkerContext` of the worker that runs it.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import re
import select
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias

from rpc_backends_processes.protocol import (
    Doing,
    Done,
    Ended,
    Failure,
    News,
    Reference,
    WorkerContext,
)
from rpc_backends_processes.template import Template, blocking_pair, default_template

#: What a step reports: news, and its outcome.
Report: TypeAlias = News | Done | Failure | Ended

#: Seconds that the other workers have to end a step after it has failed in one of them.
_GRACE_PERIOD = 5.0
#: Most seconds that processes have to print their stacks, and between two looks at what they print. So
#: many looks without a change mean that nothing more comes.
_STACKS, _LOOK, _UNCHANGED = 5.0, 0.1, 4
#: What each stack begins with.
_STACK = "(most recent call first)"
#: How many lines of a worker's output an error shows at most; the last ones are its stacks.
_LINES = 150
#: The frames at the bottom of each worker's stack: those of this package.
_OUR_FRAMES = re.compile(
    r'^  File "[^"\n]*rpc_backends_processes/worker\.py", line .*\n(?:  File "<string>".*\n)?',
    re.M,
)


class WorkerError(RuntimeError):
    """A step failed or timed out, or a worker ended; the text has tracebacks and the workers' output.

    :ivar details: the `worker_details` of the exception of the step that failed first, if it has any.
    :ivar stuck: for each worker whose step had not ended: what the step was doing, as it last reported.
    :ivar failures: the steps that failed, in the order of the workers.
    :ivar late: whether a worker exceeded the time limit.
    :ivar died: whether a worker ended before its step did.
    """

    def __init__(
        self,
        text: str,
        *,
        details: Any = None,
        stuck: Mapping[str, str] | None = None,
        failures: Iterable[StepFailure] = (),
        late: bool = False,
        died: bool = False,
    ) -> None:
        super().__init__(text)
        self.late = late
        self.died = died
        self.details = details
        self.stuck = dict(stuck or {})
        self.failures = tuple(failures)


class StepFailure(NamedTuple):
    """A step that failed.

    :ivar worker: the worker's name.
    :ivar doing: what the step did last, as it reported.
    :ivar error: the exception's class and text.
    """

    worker: str
    doing: str
    error: str


class Step:
    """A step that was started in one worker.

    :ivar ending: its outcome; None until it is received.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._begin = time.monotonic()
        self.ending: Done | Failure | Ended | None = None

    def hear(self, seconds: float) -> Report | None:
        """Wait at most ``seconds`` for a report of the step; return None if there is none."""
        report = self.worker.hear(seconds)
        if not isinstance(report, News | None):
            self.ending = report
        return report

    def is_over(self, seconds: float = 0.0) -> bool:
        """Wait at most ``seconds`` for the end of the step; return whether it has ended. Drops news.

        :raises WorkerError: the worker's process ended.
        """
        __tracebackhide__ = True
        end = time.monotonic() + seconds
        while self.ending is None:
            if self.hear(end - time.monotonic()) is None:
                return False
        self._outcome()
        return True

    def outcome(self, seconds: float | None = None) -> Done | Failure:
        """Wait for the outcome, at most ``seconds`` and at most until the timeout of the `Workers`.

        :raises WorkerError: the worker's process ended, or the wait timed out.
        """
        __tracebackhide__ = True
        while self.ending is None:
            self._receive(seconds)
        return self._outcome()

    def result(self, seconds: float | None = None) -> Any:
        """Wait for the step and return what it returned.

        :raises WorkerError: the step raised, its process ended, or the wait timed out.
        """
        __tracebackhide__ = True
        return _results([self.worker], [self.outcome(seconds)])[0]

    def error(self, seconds: float | None = None) -> Failure:
        """Wait for the step and return its failure.

        :raises WorkerError: the step returned, its process ended, or the wait timed out.
        """
        __tracebackhide__ = True
        return _failures([self.worker], [self.outcome(seconds)])[0]

    def news(self) -> Any:
        """Wait for a value that the step reports with `WorkerContext.tell`, and return it."""
        __tracebackhide__ = True
        report = self._receive(None)
        if isinstance(report, News):
            return report.value
        self.result()
        raise WorkerError(f"{self.worker.name} finished its step and reported nothing")

    def _receive(self, seconds: float | None) -> Report:
        """Wait for a report of the step; on a timeout, raise an error with the workers' stacks."""
        __tracebackhide__ = True
        workers = self.worker.workers
        left = workers.seconds_left()
        report = self.hear(left if seconds is None else min(left, seconds))
        if report is None:
            took = time.monotonic() - self._begin
            workers.give_up(f"{self.worker.name} did not finish its step in time ({took:.0f} s)")
        return report

    def _outcome(self) -> Done | Failure:
        __tracebackhide__ = True
        assert self.ending is not None
        if isinstance(self.ending, Ended):
            worker = self.worker
            status = self.ending.status
            text = (
                f"{worker.name} ended during a step, exit status {status}\n{worker.shown_output()}"
            )
            stuck = {worker.name: worker.doing} if worker.doing else {}
            raise WorkerError(text, stuck=stuck, died=True)
        return self.ending


class Worker:
    """One worker process. ``start`` and ``call`` run a step in it."""

    def __init__(self, workers: Workers, index: int, env: Mapping[str, str], fresh: bool) -> None:
        self.index = index
        self.name = f"worker{index}"
        #: The exit status, once the process has ended.
        self.status: int | None = None
        self.workers = workers
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        #: What the current step does, as it last reported; empty between steps.
        self.doing = ""
        #: What the previous step did last, as it reported.
        self.last_doing = ""
        ours, theirs = blocking_pair()
        with theirs:
            start = workers.template.start_fresh if fresh else workers.template.fork
            self.pid, self._reap = start(theirs.fileno(), self._log.fileno(), env)
        self._pidfd = os.pidfd_open(self.pid)
        self.connection = Connection(ours.detach())
        self.connection.send(WorkerContext(index, self.name, workers.size))

    def start(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Step:
        """Start a step; the previous one must have ended."""
        where = Reference.to(function) if hasattr(function, "__qualname__") else function
        self.connection.send_bytes(pickle.dumps((where, pickle.dumps((args, kwargs)))))
        return Step(self)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a step and return its result."""
        __tracebackhide__ = True
        return self.start(function, *args, **kwargs).result()

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the current step."""
        os.kill(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """End the process at once (SIGKILL) and wait until it has ended, with its files closed."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):  # Ctrl-C came before its status was read
                os.kill(self.pid, signal.SIGKILL)
            self.wait_for_end(30)

    def finish(self) -> None:
        """Let the process end normally, after the current step."""
        self.connection.close()

    def end(self) -> int:
        """Let the process end normally and return its exit status."""
        __tracebackhide__ = True
        self.finish()
        if not self.wait_for_end(self.workers.seconds_left()):
            self.workers.give_up(f"{self.name} did not end")
        assert self.status is not None
        return self.status

    def hear(self, seconds: float) -> Report | None:
        """Wait at most ``seconds`` for a report of the current step; return None if there is none."""
        end = time.monotonic() + seconds
        while self.connection.poll(_timeout(end - time.monotonic())):
            try:
                report: Doing | Done | Failure | News = self.connection.recv()
            except (EOFError, ConnectionResetError):
                self.wait_for_end(5)
                return Ended(self.status)
            if isinstance(report, Doing):
                self.doing = report.what
                continue
            if not isinstance(report, News):
                self.doing, self.last_doing = "", self.doing
            return report
        return None

    def wait_for_end(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for the end of the process; return whether it has ended."""
        if self.status is None and select.select([self._pidfd], [], [], _timeout(seconds))[0]:
            # End the processes that the worker has started. The worker's id stays its own until the wait.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.status = self._reap()
        return self.status is not None

    @property
    def output(self) -> str:
        """The output of the worker, including that of C++ code."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def shown_output(self) -> str:
        """Return the end of the output for an error, without this package's frames in stacks."""
        lines = _OUR_FRAMES.sub("", self.output).splitlines(keepends=True)
        left_out = len(lines) - _LINES
        if left_out > 0:
            lines[:left_out] = [f"({left_out} lines left out)\n"]
        return "".join(lines)

    def close(self) -> None:
        """End the process, if it still runs, and close its files; a second call does nothing."""
        if self._log.closed:
            return
        self.kill()
        self.connection.close()
        os.close(self._pidfd)
        self._log.close()


class Workers:
    """A context manager with workers named ``worker0``, ``worker1`` ...; all end with the block.

    :param size: how many workers to start.
    :param env: variables to add to their environment.
    :param seconds: timeout of the block, once the workers run; after it, a wait fails and shows every
        worker's stacks.
    :param fresh: start new interpreters, for variables that torch reads at import (a second each).
    :param template: the template to fork from; one that has imported torch by default.
    """

    def __init__(
        self,
        size: int,
        *,
        env: Mapping[str, str] | None = None,
        seconds: float = 60,
        fresh: bool = False,
        template: Template | None = None,
    ) -> None:
        self.size = size
        self.template = template or default_template()
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._env = dict(env or {})
        self._fresh = fresh
        self._all: list[Worker] = []

    def __enter__(self) -> Workers:
        """Start the workers."""
        try:
            for _ in range(self.size):
                self.add()
        except BaseException:
            self.__exit__()
            raise
        self._end = time.monotonic() + self._seconds
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End the workers."""
        for worker in self._all:
            worker.close()

    def __getitem__(self, index: int) -> Worker:
        return self._all[index]

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._all)

    def add(self) -> Worker:
        """Start one more worker."""
        self._all.append(Worker(self, len(self._all), self._env, self._fresh))
        return self._all[-1]

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        on: Iterable[int] | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Run a step in all running workers at once, or in those with an index in ``on``.

        After the step has failed in one worker, the others have five seconds to end it.

        :returns: the results, in the order of the workers.
        :raises WorkerError: a step failed; the text has the traceback of each that did.
        """
        __tracebackhide__ = True
        steps = self._start(function, args, kwargs, on)
        for _ in self.listen(steps, grace=_GRACE_PERIOD):
            pass
        over = [step for step in steps if step.ending is not None]
        if len(over) < len(steps) and any(
            isinstance(step.ending, Failure | Ended) for step in over
        ):
            late = [step.worker for step in steps if step.ending is None]
            self.print_stacks()
            _results([step.worker for step in over], [step.outcome() for step in over], late)
        return _results([step.worker for step in steps], [step.outcome() for step in steps])

    def errors(
        self,
        function: Callable[..., Any],
        *args: Any,
        on: Iterable[int] | None = None,
        **kwargs: Any,
    ) -> list[Failure]:
        """Run a step that must fail, as :meth:`run` does; return the failures.

        :raises WorkerError: a step returned.
        """
        __tracebackhide__ = True
        steps = self._start(function, args, kwargs, on)
        return _failures([step.worker for step in steps], [step.outcome() for step in steps])

    def listen(
        self, steps: Iterable[Step], *, silence: float = math.inf, grace: float = math.inf
    ) -> Iterator[tuple[Step, Report]]:
        """Yield each report of ``steps`` with its step, until all steps have ended or time is up.

        Time is up after the timeout of the workers, after ``silence`` seconds without any report, and
        ``grace`` seconds after a step has failed. Steps that still run then have no ``ending``.
        """
        waiting, end = list(steps), self._end
        while waiting and (left := end - time.monotonic()) > 0:
            by_connection = {step.worker.connection: step for step in waiting}
            ready = wait(by_connection, _timeout(min(left, silence)))
            if not ready:
                return
            for step in (
                by_connection[connection] for connection in by_connection if connection in ready
            ):
                report = step.hear(0)
                if report is None:
                    continue  # the message only said what the step does next
                if step.ending is not None:
                    waiting.remove(step)
                if isinstance(report, Failure | Ended):
                    end = min(end, time.monotonic() + grace)
                yield step, report

    def seconds_left(self) -> float:
        """Return the seconds until the timeout."""
        return max(0.0, self._end - time.monotonic())

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Give the steps of a block at most ``seconds``, within the timeout of the `Workers`."""
        end = self._end
        self._end = min(end, time.monotonic() + seconds)
        try:
            yield
        finally:
            self._end = end

    def give_up(self, why: str) -> NoReturn:
        """Raise a `WorkerError` with the output and the stacks of all workers."""
        __tracebackhide__ = True
        for worker in self._all:
            while not worker.connection.closed and isinstance(worker.hear(0), News):
                pass  # skip the news, to reach the last report of what the step does
        self.print_stacks()
        shown = "\n".join(f"--- {worker.name}\n{worker.shown_output()}" for worker in self._all)
        stuck = {worker.name: worker.doing for worker in self._all if worker.doing}
        text = f"{why}; output and stacks of the workers:\n{shown}"
        raise WorkerError(text, stuck=stuck, late=True)

    def print_stacks(self) -> None:
        """Make every process print the stacks of its threads, even if it is stuck in C code.

        There is no event when they are printed, so this waits until all have begun and print no more.
        """
        before = {worker: len(worker.output) for worker in self._all if worker.status is None}
        for worker in before:
            os.kill(worker.pid, signal.SIGUSR1)
        end, last, unchanged = time.monotonic() + _STACKS, None, 0
        while time.monotonic() < end and unchanged < _UNCHANGED:
            time.sleep(_LOOK)
            new = {
                worker: worker.output[start:]
                for worker, start in before.items()
                if worker.status is None and not _prints_nothing(worker.pid)
            }
            is_unchanged = new == last and all(_STACK in text for text in new.values())
            last, unchanged = new, unchanged + 1 if is_unchanged else 0

    def _start(self, function: Any, args: Any, kwargs: Any, on: Iterable[int] | None) -> list[Step]:
        alive = [worker for worker in self._all if worker.status is None]
        chosen = alive if on is None else [self._all[index] for index in on]
        return [worker.start(function, *args, **kwargs) for worker in chosen]


def _prints_nothing(pid: int) -> bool:
    """Return whether a process has ended, or is stopped by a signal."""
    try:
        # After the name, which may have spaces and parentheses.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2][1] in "TXZ"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _timeout(seconds: float) -> float | None:
    """Return ``seconds`` as a timeout for functions that take None for infinity."""
    return None if seconds == math.inf else max(0.0, seconds)


def _results(
    workers: list[Worker], outcomes: list[Done | Failure], late: Iterable[Worker] = ()
) -> list[Any]:
    """Return the results of a step, or raise what went wrong.

    :param late: workers in which the step has not ended.
    """
    __tracebackhide__ = True
    failed = [
        f"--- {worker.name}, after {outcome.seconds:.2f} s\n{outcome.trace}{worker.shown_output()}"
        for worker, outcome in zip(workers, outcomes, strict=True)
        if isinstance(outcome, Failure)
    ]
    failed += [
        f"--- {worker.name} had not finished: {worker.doing}\n{worker.shown_output()}"
        for worker in late
    ]
    if failed:
        details = (o.details for o in outcomes if isinstance(o, Failure) and o.details)
        raise WorkerError(
            "\n".join(["a step failed", *failed]),
            details=next(details, None),
            failures=[
                StepFailure(worker.name, worker.last_doing, f"{outcome.kinds[0]}: {outcome.text}")
                for worker, outcome in zip(workers, outcomes, strict=True)
                if isinstance(outcome, Failure)
            ],
        )
    return [outcome.value for outcome in outcomes if isinstance(outcome, Done)]


def _failures(workers: list[Worker], outcomes: list[Done | Failure]) -> list[Failure]:
    __tracebackhide__ = True
    for worker, outcome in zip(workers, outcomes, strict=True):
        if isinstance(outcome, Done):
            text = f"{worker.name} returned {outcome.value!r}, but an error was expected"
            raise WorkerError(text)
    return [outcome for outcome in outcomes if isinstance(outcome, Failure)]
