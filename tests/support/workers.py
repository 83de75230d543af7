"""Worker processes for tests that need several: started in milliseconds, told step by step what to do.

A worker lives until its `Workers` ends, so a scenario is a sequence of steps, and a test waits for
results and not for time to pass::

    with Workers(3) as workers:
        workers.run(join, "file:///...")             # a step on all at once
        assert workers[0].call(ask, "worker1") == 4  # a step on one
        waiting = workers[1].start(hear_from, "worker2")
        workers[2].kill()
        assert "eof" in waiting.error().text         # the end of a step that was started before

A step is a function of a test module; its first argument is the `Me` of the worker that runs it. Workers
are forked from a *template*: a process that has imported torch and the plugins and has used neither.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from support.environments import clean_environ

ROOT = Path(__file__).parents[2]
#: Imported once, in the template. Not the faulty plugin, whose import makes torch register a backend.
_PRELOAD = (
    "torch.distributed.rpc",
    "importlib_metadata",
    "rpc_backends_core.hooks",
    "rpc_backends_core.torch_bridge.start",
    "rpc_backends_core.torch_bridge.stop",
    "rpc_backend_tensorpipe",
)


@dataclass
class Me:
    """What a step knows of the worker it runs in; ``memory`` keeps what a later step needs."""

    index: int
    name: str
    size: int
    memory: dict[str, Any] = field(default_factory=dict)
    connection: Connection | None = None

    def tell(self, news: Any) -> None:
        """Say something to the test before the step is over; `Step.news` returns it there."""
        assert self.connection is not None
        self.connection.send(News(news))


@dataclass(frozen=True)
class News:
    """What a step says while it is under way."""

    value: Any


@dataclass(frozen=True)
class Done:
    """A step that returned ``value`` after ``seconds``."""

    value: Any
    seconds: float


@dataclass(frozen=True)
class Failure:
    """A step that raised.

    :ivar kinds: names of the exception's classes, its own first.
    """

    kinds: tuple[str, ...]
    text: str
    trace: str
    seconds: float


class WorkerError(AssertionError):
    """A step failed, a worker died or was too late; the text shows tracebacks and what they printed."""


class Step:
    """A step under way in one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._outcome: Done | Failure | None = None

    def outcome(self, seconds: float | None = None) -> Done | Failure:
        """Wait for the end, at most ``seconds`` or until the time of all `Workers` is up."""
        __tracebackhide__ = True
        while self._outcome is None:
            said = self._worker.receive(seconds)
            if not isinstance(said, News):
                self._outcome = said
        return self._outcome

    def result(self, seconds: float | None = None) -> Any:
        """Return what the step returned.

        :raises WorkerError: it raised.
        """
        __tracebackhide__ = True
        return _results([self._worker], [self.outcome(seconds)])[0]

    def error(self, seconds: float | None = None) -> Failure:
        """Return how the step failed, which it must."""
        __tracebackhide__ = True
        return _failures([self._worker], [self.outcome(seconds)])[0]

    def news(self) -> Any:
        """Wait for what the step says by `Me.tell` and return it."""
        __tracebackhide__ = True
        said = self._worker.receive(None)
        if isinstance(said, News):
            return said.value
        self._outcome = said
        _results([self._worker], [said])
        raise WorkerError(f"{self._worker.name} was through with its step and had said nothing")

    def is_over(self) -> bool:
        """Return whether the step has ended, or has said something."""
        return self._outcome is not None or self._worker.connection.poll()


class Worker:
    """One process. ``start`` and ``call`` run a step in it."""

    def __init__(self, workers: Workers, index: int, env: Mapping[str, str], fresh: bool) -> None:
        self.index = index
        self.name = f"worker{index}"
        self._workers = workers
        self._log = tempfile.TemporaryFile()
        ours, theirs = socket.socketpair()
        with theirs:
            start = _fresh_process if fresh else _template().fork
            self.pid, self._reap = start(theirs.fileno(), self._log.fileno(), env)
        self._pidfd = os.pidfd_open(self.pid)
        self.connection = Connection(ours.detach())
        self.connection.send(Me(index, self.name, workers.size))
        self.status: int | None = None

    def start(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Step:
        """Begin a step; the one before must have ended."""
        self.connection.send_bytes(pickle.dumps((function, args, kwargs)))
        return Step(self)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a step and return its result."""
        __tracebackhide__ = True
        return self.start(function, *args, **kwargs).result()

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the step under way."""
        os.kill(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """End the process at once (SIGKILL) and wait until the kernel has closed all it had open."""
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            self._wait_for_end(30)

    def end(self) -> int:
        """Let the process end as a program does, and return its exit status."""
        self.connection.close()
        if not self._wait_for_end(self._workers.seconds_left()):
            self._workers.give_up(f"{self.name} did not end")
        assert self.status is not None
        return self.status

    def receive(self, seconds: float | None) -> Done | Failure | News:
        """Wait for what the step under way has to say."""
        __tracebackhide__ = True
        left = self._workers.seconds_left()
        if not self.connection.poll(left if seconds is None else min(left, seconds)):
            self._workers.give_up(f"{self.name} was not through with its step in time")
        try:
            said: Done | Failure | News = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self._wait_for_end(5)
            raise WorkerError(
                f"{self.name} ended, exit status {self.status}\n{self.output}"
            ) from None
        return said

    @property
    def output(self) -> str:
        """What the worker, and the C++ in it, has printed."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def dump_stacks(self) -> None:
        """Make the worker print the Python stacks of its threads, which needs none of its Python."""
        if self.status is None:
            os.kill(self.pid, signal.SIGUSR1)

    def close(self) -> None:
        """End the process if it lives, and let go of it."""
        self.kill()
        self.connection.close()
        os.close(self._pidfd)
        self._log.close()

    def _wait_for_end(self, seconds: float) -> bool:
        if self.status is None and select.select([self._pidfd], [], [], seconds)[0]:
            self.status = self._reap()
        return self.status is not None


class Workers:
    """Workers named ``worker0`` ...; all are gone after the ``with`` block, however it ends.

    :param env: variables that they see on top of a clean environment.
    :param seconds: how long all of it may take; a wait that is longer fails, and shows where each is.
    :param fresh: start new interpreters, for variables that matter at ``import torch`` (seconds each).
    """

    def __init__(
        self,
        size: int,
        *,
        env: Mapping[str, str] | None = None,
        seconds: float = 60,
        fresh: bool = False,
    ) -> None:
        self.size = size
        self._end = time.monotonic() + seconds
        self._env = dict(env or {})
        self._fresh = fresh
        self._all: list[Worker] = []

    def __enter__(self) -> Workers:
        try:
            for _ in range(self.size):
                self.add()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        for worker in self._all:
            worker.close()

    def __getitem__(self, index: int) -> Worker:
        return self._all[index]

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._all)

    def add(self, env: Mapping[str, str] | None = None) -> Worker:
        """Start one more worker, with further variables if need be."""
        self._all.append(
            Worker(self, len(self._all), {**self._env, **(env or {})}, fresh=self._fresh)
        )
        return self._all[-1]

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        on: Iterable[int] | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Run a step in all living workers at once (or those of index ``on``); return the results.

        :raises WorkerError: with the traceback of each that failed.
        """
        __tracebackhide__ = True
        return _results(*self._outcomes(function, args, kwargs, on))

    def errors(
        self,
        function: Callable[..., Any],
        *args: Any,
        on: Iterable[int] | None = None,
        **kwargs: Any,
    ) -> list[Failure]:
        """Run a step that must fail in all living workers (or those of index ``on``)."""
        __tracebackhide__ = True
        return _failures(*self._outcomes(function, args, kwargs, on))

    def seconds_left(self) -> float:
        """Return how much of the time is left."""
        return max(0.0, self._end - time.monotonic())

    def give_up(self, why: str) -> None:
        """Raise a `WorkerError` that shows where every worker is."""
        __tracebackhide__ = True
        for worker in self._all:
            worker.dump_stacks()
        time.sleep(0.5)  # nothing says when a dump is written
        shown = "\n".join(f"--- {worker.name}\n{worker.output}" for worker in self._all)
        raise WorkerError(f"{why}; what the workers printed, and their stacks:\n{shown}")

    def _outcomes(
        self, function: Any, args: Any, kwargs: Any, on: Iterable[int] | None
    ) -> tuple[list[Worker], list[Done | Failure]]:
        __tracebackhide__ = True
        alive = [worker for worker in self._all if worker.status is None]
        chosen = alive if on is None else [self._all[index] for index in on]
        steps = [worker.start(function, *args, **kwargs) for worker in chosen]
        return chosen, [step.outcome() for step in steps]


def _results(workers: list[Worker], outcomes: list[Done | Failure]) -> list[Any]:
    __tracebackhide__ = True
    failed = [
        f"--- {worker.name}, after {outcome.seconds:.2f} s\n{outcome.trace}{worker.output}"
        for worker, outcome in zip(workers, outcomes, strict=True)
        if isinstance(outcome, Failure)
    ]
    if failed:
        raise WorkerError("\n".join(["a step failed", *failed]))
    return [outcome.value for outcome in outcomes if isinstance(outcome, Done)]


def _failures(workers: list[Worker], outcomes: list[Done | Failure]) -> list[Failure]:
    __tracebackhide__ = True
    for worker, outcome in zip(workers, outcomes, strict=True):
        if isinstance(outcome, Done):
            raise WorkerError(
                f"{worker.name} returned {outcome.value!r}, where an error was expected"
            )
    return [outcome for outcome in outcomes if isinstance(outcome, Failure)]


class _Template:
    """The process that workers are forked from, asked over a socket."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            _start_python("_serve", theirs.fileno(), stdout=None)

    def fork(
        self, connection: int, log: int, env: Mapping[str, str]
    ) -> tuple[int, Callable[[], int]]:
        socket.send_fds(self._socket, [pickle.dumps(dict(env))], [connection, log])
        answer = self._socket.recv(100)
        if not answer:
            raise WorkerError("the template of the workers has ended; its own error is on stderr")
        pid = int(answer)
        return pid, functools.partial(self._wait, pid)

    def _wait(self, pid: int) -> int:
        self._socket.send(pickle.dumps(pid))
        return os.waitstatus_to_exitcode(int(self._socket.recv(100)))


_template = functools.cache(_Template)


def _fresh_process(
    connection: int, log: int, env: Mapping[str, str]
) -> tuple[int, Callable[[], int]]:
    process = _start_python("_work", connection, stdout=log, env=env)
    return process.pid, process.wait


def _start_python(
    function: str, fd: int, *, stdout: int | None, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'tests')!r}]; "
        f"from support import workers; workers.{function}({fd})"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        pass_fds=[fd],
        env=clean_environ(env),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=None if stdout is None else subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for pytest, which then ends us
    )


def _serve(fd: int) -> None:
    """Be the template: fork, or wait for, one worker a request, until pytest is gone."""
    requests = socket.socket(fileno=fd)
    for module in _PRELOAD:
        importlib.import_module(module)
    gc.freeze()
    while True:
        data, fds, _, _ = socket.recv_fds(requests, 100_000, 2)
        if not data:
            return
        request = pickle.loads(data)
        if isinstance(request, int):
            requests.send(str(os.waitpid(request, 0)[1]).encode())
            continue
        pid = os.fork()
        if pid == 0:
            break
        requests.send(str(pid).encode())
        for each in fds:
            os.close(each)
    requests.close()
    os.environ.update(request)
    connection, log = fds
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    _work(connection)


def _work(fd: int) -> None:
    """Be a worker: run steps until there are no more."""
    death_signal = 1  # PR_SET_PDEATHSIG: nothing of ours outlives pytest, however that ends
    ctypes.CDLL(None).prctl(death_signal, signal.SIGKILL)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    _make_test_modules_importable()
    connection = Connection(fd)
    me = connection.recv()
    me.connection = connection
    with contextlib.suppress(EOFError):
        while True:
            connection.send_bytes(_run(me, connection.recv_bytes()))


def _run(me: Me, request: bytes) -> bytes:
    begin = time.monotonic()
    try:
        function, args, kwargs = pickle.loads(request)
        begin = time.monotonic()
        value = function(me, *args, **kwargs)
        return pickle.dumps(Done(value, time.monotonic() - begin))
    except BaseException as error:  # KeyboardInterrupt and SystemExit are outcomes like others
        kinds = tuple(kind.__name__ for kind in type(error).__mro__)
        trace = "".join(traceback.format_exception(error))
        return pickle.dumps(Failure(kinds, str(error), trace, time.monotonic() - begin))


def _make_test_modules_importable() -> None:
    """Let Python find test modules by the names that pytest gives them, from this repository alone."""
    for folder in ("tests", "plugins"):
        package = types.ModuleType(folder)
        package.__path__ = [str(ROOT / folder)]
        sys.modules[folder] = package
