"""Installs a recorder in front of an agent."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import signal
from logging import getLogger
from pathlib import Path
from typing import Any

from rpc_backends_agents import Recorder, intercept
from rpc_backends_inspect import folder

_log = getLogger(__name__)
#: The place among interceptors: nearest to the program, so that the recorder sees what the program sees.
_ORDER = -1000


def record(agent: Any, backend: str, group: str, calls: int) -> Any:
    """Put a recorder in front of an agent that has not started.

    Without a folder for the socket, or without a free signal, the recorder shows less and logs a warning.
    The worker starts all the same.

    :param group: a text that is the same for all workers of a group.
    :param calls: the number of ended calls to keep.
    :returns: the agent to install.
    """
    cleanup = contextlib.ExitStack()
    recorder = Recorder(
        agent=getattr(agent, "inner", agent),
        capacity=calls,
        backend=backend,
        group=group,
        listener=_listener(agent.get_worker_info().name, cleanup),
        **_stacks(cleanup),
    )

    def end() -> None:
        recorder.stop()
        cleanup.close()

    # Stacks cannot be read while the interpreter ends, and the socket must be removed.
    atexit.register(end)
    cleanup.callback(atexit.unregister, end)
    return intercept(agent, recorder, name="recorder", order=_ORDER, at_shutdown=cleanup.close)


def _listener(worker: str, cleanup: contextlib.ExitStack) -> int:
    """Return the descriptor of a listening socket, which the recorder will own; -1 if there is none."""
    try:
        listener, path = folder.listen(worker)
    except OSError as error:
        _log.warning("rpc-backends inspect cannot find this worker: %s", error)
        return -1
    cleanup.callback(_remove, path, os.getpid())
    return listener.detach()


def _stacks(cleanup: contextlib.ExitStack) -> dict[str, int]:
    """Let faulthandler write stacks to a file when a signal arrives. This needs no GIL."""
    free = (number for number in range(signal.SIGRTMAX, signal.SIGRTMIN, -1) if _is_free(number))
    number = next(free, None)
    if number is None:
        _log.warning(
            "rpc-backends inspect shows no stacks of this worker: no real-time signal is free"
        )
        return {"stack_file": -1, "stack_signal": 0}
    file = os.memfd_create("rpc-stacks", os.MFD_CLOEXEC)
    faulthandler.register(number, file=file, all_threads=True, chain=False)
    cleanup.callback(faulthandler.unregister, number)
    return {"stack_file": file, "stack_signal": number}


def _is_free(number: int) -> bool:
    return signal.getsignal(number) is signal.SIG_DFL


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other workers have sockets there
            path.parent.rmdir()
