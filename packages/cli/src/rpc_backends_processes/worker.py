"""The code of the processes: the template that workers are forked from, and a worker."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import os
import pickle
import signal
import socket
import sys
import time
import traceback
import types
import warnings
from collections.abc import Iterable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from rpc_backends_processes.protocol import Done, Failure, Reference, WorkerContext

_PR_SET_PDEATHSIG = 1


def serve(
    fd: int, packages: Mapping[str, str], preload: Iterable[str], prepare: Iterable[Iterable[Any]]
) -> None:
    """Run the template until the parent has ended. A request forks a worker, or waits for a worker's end.

    :param fd: the file descriptor of the socket for requests.
    :param packages: folders to import as packages, by package name.
    :param preload: modules to import before the first fork.
    :param prepare: references to functions to call after that.
    """
    requests = socket.socket(fileno=fd)
    make_packages(packages)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in preload:
            importlib.import_module(module)
        for reference in prepare:
            Reference(*reference).resolve()()
    gc.freeze()
    statuses: dict[int, int] = {}  # of ended workers; the parent may ask again after Ctrl-C
    while True:
        try:
            data, fds, _, _ = socket.recv_fds(requests, 100_000, 2)
        except ConnectionResetError:
            data = b""  # the parent has ended without reading an answer
        if not data:
            os._exit(0)  # the parent has ended, and there is nothing to clean up
        number, request = pickle.loads(data)
        if isinstance(request, int):
            if request not in statuses:
                statuses[request] = os.waitpid(request, 0)[1]
            requests.send(b"%d %d" % (number, statuses[request]))
            continue
        pid = os.fork()
        if pid == 0:
            break
        statuses.pop(pid, None)
        requests.send(b"%d %d" % (number, pid))
        for each in fds:
            os.close(each)
    os.setpgid(0, 0)  # so that processes that the worker starts can be ended with it
    requests.close()
    os.environ.update(request)
    connection, log = fds
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    work(connection)


def make_packages(packages: Mapping[str, str]) -> None:
    """Make folders importable as packages, by package name, without installing them."""
    for name, folder in packages.items():
        package = types.ModuleType(name)
        package.__path__ = [folder]
        sys.modules[name] = package


def work(fd: int) -> None:
    """Run a worker: run steps until the connection closes."""
    # No worker outlives its parent, however the parent ends.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # A shell makes its background jobs ignore SIGINT, and their children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # prints the stack of every thread
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.set_inheritable(fd, False)  # processes that the worker starts must not keep it open
    connection = Connection(fd)
    me = connection.recv()
    me.connection = connection
    with contextlib.suppress(EOFError):
        while True:
            connection.send_bytes(_run(me, connection.recv_bytes()))


def _run(me: WorkerContext, request: bytes) -> bytes:
    begin = time.monotonic()
    try:
        reference, rest = pickle.loads(request)
        function = reference.resolve() if isinstance(reference, Reference) else reference
        args, kwargs = pickle.loads(rest)
        begin = time.monotonic()
        value = function(me, *args, **kwargs)
        return pickle.dumps(Done(value, time.monotonic() - begin))
    except BaseException as error:  # KeyboardInterrupt and SystemExit are outcomes too
        kinds = tuple(kind.__name__ for kind in type(error).__mro__)
        trace = "".join(traceback.format_exception(error))
        now, details = time.monotonic(), getattr(error, "worker_details", None)
        notes = tuple(map(str, getattr(error, "__notes__", ())))
        return pickle.dumps(Failure(kinds, str(error), trace, now - begin, details, now, notes))
