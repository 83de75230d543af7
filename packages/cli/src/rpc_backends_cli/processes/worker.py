"""What runs in the processes: the template that workers are forked from, and a worker."""

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

from rpc_backends_cli.processes.protocol import Done, Failure, Reference, WorkerContext

_PR_SET_PDEATHSIG = 1


def serve(
    fd: int, packages: Mapping[str, str], preload: Iterable[str], prepare: Iterable[Iterable[Any]]
) -> None:
    """Be the template: fork, or wait for, one worker a request, until the parent is gone.

    :param packages: folders to be packages, by name.
    :param preload: modules to import before any worker is forked.
    :param prepare: references to functions to call then.
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
    while True:
        try:
            data, fds, _, _ = socket.recv_fds(requests, 100_000, 2)
        except ConnectionResetError:
            data = b""  # the parent has ended without reading an answer
        if not data:
            os._exit(0)  # the parent is gone, and there is nothing to tidy up
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
    os.setpgid(0, 0)  # so that what it starts can be ended with it
    requests.close()
    os.environ.update(request)
    connection, log = fds
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    work(connection)


def make_packages(packages: Mapping[str, str]) -> None:
    """Make packages of folders, by name, though nothing installs them."""
    for name, folder in packages.items():
        package = types.ModuleType(name)
        package.__path__ = [folder]
        sys.modules[name] = package


def work(fd: int) -> None:
    """Be a worker: run steps until there are no more."""
    # No worker outlives its parent, however that ends.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # A shell makes background jobs ignore it, and who is started by one inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # prints where every thread is
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.set_inheritable(fd, False)  # what the worker starts is not to keep it open
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
    except BaseException as error:  # KeyboardInterrupt and SystemExit are outcomes like others
        kinds = tuple(kind.__name__ for kind in type(error).__mro__)
        trace = "".join(traceback.format_exception(error))
        now, found = time.monotonic(), getattr(error, "deviation", None)
        notes = tuple(map(str, getattr(error, "__notes__", ())))
        return pickle.dumps(Failure(kinds, str(error), trace, now - begin, found, now, notes))
