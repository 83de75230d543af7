"""A process that stands ready in place of a Python interpreter that would import torch again.

The code of this project starts an interpreter for the template of worker processes, and for pytest. In a
program that was forked from a process with torch (`support.forks`), the start takes one of these instead,
because an import of torch takes two seconds of a core. It is forked before the program runs, so it shares
nothing with the program, and it ends as an interpreter does: at the end of its code.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import pickle
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
#: Variables that Python, torch or the C library reads when it starts. PYTHONPATH is set by the code.
AT_START = ("PYTHON", "TORCH", "OMP_", "LD_", "MALLOC")
#: Torch reads these too. The first only hides warnings, and the plugins are installed after the fork.
_LATE = ("TORCH_CPP_LOG_LEVEL", _AUTOLOAD, "PYTHONPATH")
_PR_SET_PDEATHSIG = 1
#: The largest message with a job.
_MOST_BYTES = 200_000


class Spare:
    """A process that waits for its code; it ends if this process ends first.

    :ivar pid: its process id.
    """

    def __init__(self, pid: int, requests: socket.socket) -> None:
        self.pid = pid
        self._requests = requests
        self._status: int | None = None

    def run(
        self, code: str, fds: list[int], log: int | None, env: Mapping[str, str], path: list[str]
    ) -> None:
        """Make the process run ``code``.

        :param fds: file descriptors that the code uses by number.
        :param log: the file descriptor for its output; None for this process's stderr.
        :param path: its ``sys.path``.
        """
        out, err = (log, log) if log is not None else (1, 2)
        job = pickle.dumps((code, fds, dict(env), path))
        with self._requests:
            socket.send_fds(self._requests, [job], [out, err, *fds])

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit status, as `subprocess.Popen.wait` does.

        :raises subprocess.TimeoutExpired: the process still runs after ``timeout`` seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while self._status is None:
            pid, status = os.waitpid(self.pid, 0 if end is None else os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
            elif end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("a process that stood ready", timeout or 0)
            else:
                time.sleep(0.01)
        return self._status

    def kill(self) -> None:
        """End the process at once."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)


_ready: list[Spare] = []


def wait_for_code(code: str, count: int = 1) -> str:
    """Fork processes that stand ready, and return ``code``; there, return the code that each gets.

    The caller runs the returned code, at the top level of its process.
    """
    _ready.clear()
    for _ in range(count):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if not pid:
            break
        theirs.close()
        _ready.append(Spare(pid, ours))
    else:
        return code
    ours.close()
    _ready.clear()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        job, received, _, _ = socket.recv_fds(theirs, _MOST_BYTES, 8)
    except KeyboardInterrupt:
        os._exit(0)
    if not job:
        os._exit(0)  # the program has ended, and did not need it
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)
    os.setsid()
    code, wanted, env, path = pickle.loads(job)
    _place(received, [1, 2, *wanted])
    theirs.close()
    os.environ.clear()
    os.environ.update(env)
    return wait_for_code(f"import sys; sys.path[:] = {path!r}; sys.argv[:] = ['-c']; {code}")


def _place(received: list[int], wanted: list[int]) -> None:
    """Give file descriptors the numbers that they have in the process that sent them."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 500) for fd in received]
    for fd in received:
        os.close(fd)
    for fd, number in zip(high, wanted, strict=True):
        os.dup2(fd, number)
        os.close(fd)


def use(first: str) -> None:
    """Make templates of worker processes use the processes that stand ready, each once.

    :param first: code to run first: what the import of torch does with plugins.
    """
    from rpc_backends_processes.template import Template

    start: Callable[..., Any] = Template._start_python
    at_start = _at_start(os.environ)

    def start_python(
        self: Any, call: str, fds: list[int], log: int | None, env: Mapping[str, str]
    ) -> Any:
        variables = {**self._environ, **env}
        if not _ready or _at_start(variables) != at_start:
            return start(self, call, fds, log, env)
        spare = _ready.pop()
        begin = f"import spare; spare.use({first!r})"
        if variables.get(_AUTOLOAD) != "0":
            begin = f"{first}; {begin}"
        code = f"{begin}; from rpc_backends_processes import worker; worker.{call}"
        spare.run(code, fds, log, variables, self._path)
        return spare

    Template._start_python = start_python  # type: ignore[method-assign]


def _at_start(environ: Mapping[str, str]) -> dict[str, str]:
    variables = {name: text for name, text in environ.items() if name.startswith(AT_START)}
    for name in _LATE:
        variables.pop(name, None)
    # The process that all are forked from has this value.
    return {"OMP_NUM_THREADS": "1", **variables}
