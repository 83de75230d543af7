"""What runs in the processes of `support.workers`, and how they are started.

Workers are forked from a *template*: a process that has imported torch and the plugins, and has used
neither. A fork takes milliseconds, and an import of torch a second.
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
import signal
import socket
import subprocess
import sys
import time
import traceback
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from support.environments import clean_environ

ROOT = Path(__file__).parents[2]
#: What the template imports. Not the faulty plugin, whose import makes torch register a backend.
PRELOAD = ("torch.distributed.rpc", "importlib_metadata", "pluggy", "rpc_backend_tensorpipe")
_PR_SET_PDEATHSIG = 1
#: Starts a process, given the descriptors of its connection and its log; returns its id, and what waits
#: for its end and returns its exit status.
Start = Callable[[int, int, Mapping[str, str]], tuple[int, Callable[[], int]]]


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


class Template:
    """The process that workers are forked from, asked over a socket."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            _start_python("serve", theirs.fileno(), log=None, env={})

    def fork(
        self, connection: int, log: int, env: Mapping[str, str]
    ) -> tuple[int, Callable[[], int]]:
        """Start a worker; see `Start`."""
        socket.send_fds(self._socket, [pickle.dumps(dict(env))], [connection, log])
        pid = int(self._answer())
        return pid, functools.partial(self._wait, pid)

    def _wait(self, pid: int) -> int:
        self._socket.send(pickle.dumps(pid))
        return os.waitstatus_to_exitcode(int(self._answer()))

    def _answer(self) -> bytes:
        with contextlib.suppress(ConnectionResetError):
            answer = self._socket.recv(100)
            if answer:
                return answer
        raise RuntimeError("the template of the workers has ended; its own error is on stderr")


template = functools.cache(Template)


def start_fresh(connection: int, log: int, env: Mapping[str, str]) -> tuple[int, Callable[[], int]]:
    """Start a worker with an interpreter of its own; see `Start`."""
    process = _start_python("work", connection, log=log, env=env)
    return process.pid, process.wait


def _start_python(
    function: str, fd: int, *, log: int | None, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'tests')!r}]; "
        f"from support import worker_process; worker_process.{function}({fd})"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        pass_fds=[fd],
        env=clean_environ(env),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=None if log is None else subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for pytest, which then ends us
    )


def serve(fd: int) -> None:
    """Be the template: fork, or wait for, one worker a request, until pytest is gone."""
    requests = socket.socket(fileno=fd)
    for module in PRELOAD:
        importlib.import_module(module)
    gc.freeze()
    while True:
        data, fds, _, _ = socket.recv_fds(requests, 100_000, 2)
        if not data:
            os._exit(0)  # pytest is gone, and there is nothing to tidy up
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
    work(connection)


def work(fd: int) -> None:
    """Be a worker: run steps until there are no more."""
    # Nothing of ours outlives pytest, however that ends.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # prints where every thread is
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
