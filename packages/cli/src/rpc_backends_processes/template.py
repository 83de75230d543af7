"""Start worker processes: forks of a template process, or new Python interpreters.

A *template* is a process that has imported torch and the packages under test but has used neither. A
fork of it takes milliseconds; an import of torch takes a second.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping

from rpc_backends_processes.protocol import Reference

#: Modules that every template imports. Each worker would otherwise import them to start and stop RPC.
PRELOAD = (
    "torch.distributed.rpc",
    "torch.distributed.rpc.rref_proxy",
    "importlib_metadata",
    "pluggy",
    "rpc_backends_core.spi.inspection",
    "rpc_backends_core._bridge.install_agent",
    "rpc_backends_core._bridge.start",
    "rpc_backends_core._bridge.stop",
)
#: Variables of a launcher's job. With them a worker would join that job or use its store.
_JOB_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK")
#: The core defines this name too. It is repeated here because an import of the core may import torch.
_OVERRIDE = "RPC_BACKENDS_OVERRIDE"

#: Seconds within which the template process must end.
_SECONDS_TO_END = 5.0

#: A process id, and a function that waits for the end of the process and returns its exit status.
Started = tuple[int, Callable[[], int]]


def environ() -> dict[str, str]:
    """Return the environment of workers: this process's variables with changes.

    The variables of a launcher's job and ``RPC_BACKENDS_OVERRIDE`` are removed. ``OMP_NUM_THREADS`` is 1
    unless set.
    """
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in (*_JOB_VARIABLES, _OVERRIDE) and not key.startswith("TORCHELASTIC_")
    }
    kept.setdefault("OMP_NUM_THREADS", "1")
    return kept


def launcher_environ(url: str) -> dict[str, str]:
    """Return the variables with which workers use a store that their launcher hosts, as under torchrun.

    Since torch 2.14, torch compares the store's address with the last two.

    :param url: ``tcp://HOST:PORT`` of the store.
    """
    host, _, port = url.removeprefix("tcp://").rpartition(":")
    return {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": host, "MASTER_PORT": port}


def blocking_pair(kind: int = socket.SOCK_STREAM) -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets, which block also if this process called `socket.setdefaulttimeout`.

    Such a timeout would make them non-blocking, also in the process that inherits one of them.
    """
    pair = socket.socketpair(socket.AF_UNIX, kind)
    for end in pair:
        end.setblocking(True)
    return pair


class Template:
    """A template process and its settings: imports, environment and ``sys.path`` of the workers.

    The template process starts with the first worker. It ends with this process or, if this is used as a
    context manager, with the block.

    :param preload: modules to import, in addition to :data:`PRELOAD`.
    :param prepare: functions to call after that, from importable modules. They must start no thread and
        open no file: a fork would lose the thread and share the file.
    :param variables: the environment; :func:`environ` by default.
    :param path: more folders for ``sys.path``.
    :param packages: folders to import as packages without installation, by package name.
    """

    def __init__(
        self,
        *,
        preload: Iterable[str] = (),
        prepare: Iterable[Callable[[], object]] = (),
        variables: Mapping[str, str] | None = None,
        path: Iterable[str] = (),
        packages: Mapping[str, str] | None = None,
    ) -> None:
        self._environ = dict(environ() if variables is None else variables)
        self._path = [*dict.fromkeys([*path, *sys.path])]
        self._packages = dict(packages or {})
        self._preload = [*PRELOAD, *preload]
        self._prepare = [tuple(Reference.to(function)) for function in prepare]
        self._numbers = itertools.count()

    @functools.cached_property
    def _requests(self) -> socket.socket:
        ours, theirs = blocking_pair(socket.SOCK_SEQPACKET)
        with theirs:
            fd = theirs.fileno()
            call = f"serve({fd}, {self._packages!r}, {self._preload!r}, {self._prepare!r})"
            self._process = self._start_python(call, [fd], None, {})
        atexit.register(self._end)
        return ours

    def __enter__(self) -> Template:
        """Return this template."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End the template process, if it was started."""
        if "_requests" in self.__dict__:
            self._end()
            atexit.unregister(self._end)
            del self._requests

    def _end(self) -> None:
        """End the template process and wait for it; otherwise Python would warn that it still runs."""
        self._requests.close()
        try:
            self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def fork(self, connection: int, log: int, env: Mapping[str, str]) -> Started:
        """Fork a worker.

        :param connection: the file descriptor of its connection to this process.
        :param log: the file descriptor for its output.
        :param env: variables to add to its environment.
        """
        pid = self._ask(dict(env), [connection, log])
        return pid, functools.partial(self._wait, pid)

    def start_fresh(self, connection: int, log: int, env: Mapping[str, str]) -> Started:
        """Start a worker as a new Python interpreter, which takes seconds; see :meth:`fork`."""
        call = f"make_packages({self._packages!r}); worker.work({connection})"
        process = self._start_python(call, [connection], log, env)
        return process.pid, process.wait

    def _wait(self, pid: int) -> int:
        return os.waitstatus_to_exitcode(self._ask(pid, []))

    def _ask(self, request: dict[str, str] | int, fds: list[int]) -> int:
        """Send a request to the template process, and return its answer."""
        number = next(self._numbers)
        socket.send_fds(self._requests, [pickle.dumps((number, request))], fds)
        with contextlib.suppress(ConnectionResetError):
            while answer := self._requests.recv(100):
                answered, value = map(int, answer.split())
                if answered == number:  # not an earlier one, for which Ctrl-C has ended the wait
                    return value
        raise RuntimeError(
            "the template process, from which workers are forked, has ended. Its error is on stderr"
        )

    def _start_python(
        self, call: str, fds: list[int], log: int | None, env: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        code = (
            f"import sys; sys.path[:] = {self._path!r}; "
            f"from rpc_backends_processes import worker; worker.{call}"
        )
        return subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=fds,
            env={**self._environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=None if log is None else subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches only this process, which then ends the worker
        )


#: The template that is used by default; it imports torch and nothing else.
default_template = functools.cache(Template)
