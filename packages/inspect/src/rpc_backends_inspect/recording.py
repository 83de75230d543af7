"""Installs a recorder in front of an agent."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import signal
import socket
from logging import getLogger
from typing import Any

from rpc_backends_agents import Recorder, intercept
from rpc_backends_inspect import sockets
from rpc_backends_inspect.dumps import NO_DUMPS, Dumps, Watcher, folder_for

_log = getLogger(__name__)


def record(agent: Any, backend: str, group: str, calls: int, dumps: Dumps = NO_DUMPS) -> Any:
    """Put a recorder in front of an agent that has not started.

    Without a socket, or without a free signal, the recorder shows less and logs a warning.
    The worker still starts.

    :param group: a text that is the same for all workers of a group.
    :param calls: the number of ended calls to keep.
    :param dumps: the dumps that the worker writes by itself.
    :returns: the agent to install.
    """
    cleanup = contextlib.ExitStack()
    name = agent.get_worker_info().name
    folder = _made(dumps.folder)
    recorder = Recorder(
        agent=getattr(agent, "inner", agent),
        capacity=calls,
        backend=backend,
        group=group,
        host=socket.gethostname(),
        listener=_listener(),
        dumps=folder,
        dump_at_end=bool(folder) and dumps.at_end,
        **_stacks(name, cleanup),
    )

    def end() -> None:
        recorder.stop()
        cleanup.close()

    if folder:
        watcher = Watcher(recorder, name, dumps.shutdown_limit)
        watcher.start()
        cleanup.callback(watcher.join)

    # Stacks cannot be read while the interpreter ends.
    atexit.register(end)
    cleanup.callback(atexit.unregister, end)
    front = intercept(agent, recorder, name="recorder", at_shutdown=cleanup.close)
    front.record_calls(recorder)
    return front


def _made(folder: str) -> str:
    try:
        return folder_for(folder)
    except OSError as error:
        _log.warning("this worker writes no RPC dumps: %s", error)
        return ""


def _listener() -> int:
    """Return the descriptor of a listening socket, which the recorder will own; -1 if there is none."""
    try:
        return sockets.listen().detach()
    except OSError as error:
        _log.warning("rpc-backends inspect cannot find this worker: %s", error)
        return -1


def _stacks(worker: str, cleanup: contextlib.ExitStack) -> dict[str, int]:
    """Let faulthandler write stacks to a file when a signal arrives. This needs no GIL."""
    free = (number for number in range(signal.SIGRTMAX, signal.SIGRTMIN, -1) if _is_free(number))
    number = next(free, None)
    if number is None:
        _log.warning(
            "rpc-backends inspect shows no stacks of this worker: no real-time signal is free"
        )
        return {"stack_file": -1, "stack_signal": 0}
    file = os.memfd_create(sockets.MEMORY_FILE + worker, os.MFD_CLOEXEC)
    faulthandler.register(number, file=file, all_threads=True, chain=False)
    cleanup.callback(faulthandler.unregister, number)
    return {"stack_file": file, "stack_signal": number}


def _is_free(number: int) -> bool:
    return signal.getsignal(number) is signal.SIG_DFL
