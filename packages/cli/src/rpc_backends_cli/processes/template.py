"""Starting worker processes: forked from a template that has torch imported, or each with its own Python.

A *template* is a process that has imported torch and the packages under test, and has used neither. A
fork of it takes milliseconds, an import of torch a second.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec

from rpc_backends_cli.processes.protocol import Reference

#: What every template imports: what starting and stopping RPC would import otherwise, in each worker.
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
#: What is imported besides where it is installed: not everybody who needs workers has tests.
_IF_INSTALLED = ("pytest",)
#: Variables by which a worker would take itself for one of a job, or meet another's store.
_OF_A_JOB = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK")
#: The core's, without importing it: that may import torch, and every worker imports this module.
_OVERRIDE = "RPC_BACKENDS_OVERRIDE"

#: Seconds that the process that workers are forked from has to end.
_SECONDS_TO_END = 5.0

#: A process's id, and what waits for its end and returns its exit status.
Started = tuple[int, Callable[[], int]]


def environ() -> dict[str, str]:
    """Return this process's variables as workers get them.

    Without a job's rendezvous or a backend in the place of the one tested; with one thread of OpenMP.
    """
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in (*_OF_A_JOB, _OVERRIDE) and not key.startswith("TORCHELASTIC_")
    }
    kept.setdefault("OMP_NUM_THREADS", "1")
    return kept


class Template:
    """How worker processes start: what they import, find and have in their environment.

    The process that they are forked from is started when the first is asked for, and ends with this one.

    :param preload: modules that it imports, beyond :data:`PRELOAD`.
    :param prepare: functions that it calls then, of modules that it can import; they must start no
        thread and open nothing, which a fork would lose or share.
    :param variables: its environment; this process's by default (:func:`environ`).
    :param path: more folders for ``sys.path``.
    :param packages: folders that are to be packages, by name, though nothing installs them.
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

    @functools.cached_property
    def _requests(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        preload = [*filter(find_spec, _IF_INSTALLED), *self._preload]
        with theirs:
            fd = theirs.fileno()
            call = f"serve({fd}, {self._packages!r}, {preload!r}, {self._prepare!r})"
            self._process = self._start_python(call, [fd], None, {})
        atexit.register(self._end)
        return ours

    def _end(self) -> None:
        """End the process that workers are forked from, so that nothing of it is left to warn of."""
        self._requests.close()
        try:
            self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def fork(self, connection: int, log: int, env: Mapping[str, str]) -> Started:
        """Fork a worker that talks on ``connection`` and prints to ``log`` (descriptors)."""
        socket.send_fds(self._requests, [pickle.dumps(dict(env))], [connection, log])
        pid = int(self._answer())
        return pid, functools.partial(self._wait, pid)

    def start_fresh(self, connection: int, log: int, env: Mapping[str, str]) -> Started:
        """Start a worker with an interpreter of its own; as :meth:`fork`, and takes seconds."""
        call = f"make_packages({self._packages!r}); worker.work({connection})"
        process = self._start_python(call, [connection], log, env)
        return process.pid, process.wait

    def _wait(self, pid: int) -> int:
        self._requests.send(pickle.dumps(pid))
        return os.waitstatus_to_exitcode(int(self._answer()))

    def _answer(self) -> bytes:
        with contextlib.suppress(ConnectionResetError):
            answer = self._requests.recv(100)
            if answer:
                return answer
        raise RuntimeError("the template of the workers has ended; its own error is on stderr")

    def _start_python(
        self, call: str, fds: list[int], log: int | None, env: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        code = (
            f"import sys; sys.path[:] = {self._path!r}; "
            f"from rpc_backends_cli.processes import worker; worker.{call}"
        )
        return subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=fds,
            env={**self._environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=None if log is None else subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for this process, which then ends it
        )


#: The template of whoever brings none: torch and nothing else.
default_template = functools.cache(Template)
