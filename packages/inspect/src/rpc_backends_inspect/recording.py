"""Installs a recorder in front of an agent."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import signal
import socket
from logging import getLogger
from typing import Any, ClassVar

from rpc_backends_agents import Recorder, record_calls
from rpc_backends_inspect import sockets
from rpc_backends_inspect.dumps import NO_DUMPS, Dumps, Watcher, folder_for
from rpc_backends_inspect.sockets import key_of_address

_log = getLogger(__name__)
#: The signals that recorders of this process use. ``signal.getsignal`` does not show their handlers.
_taken: set[int] = set()


def record(
    agent: Any, backend: str, group: str, group_id: str, calls: int, dumps: Dumps = NO_DUMPS
) -> Any:
    """Put a recorder in front of an agent that has not started.

    Without a socket, or without a free signal, the recorder shows less and logs a warning.
    The worker still starts.

    :param group: the address where the group meets.
    :param group_id: a text that is the same for all workers of the group, and no others; empty if there
        is none.
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
        group_id=group_id,
        host=socket.gethostname(),
        listener=_listener(),
        dumps=folder,
        dump_at_end=bool(folder) and dumps.at_end,
        **_stacks(group_id or key_of_address(group), name, cleanup),
    )
    peers = None
    if folder:
        from rpc_backends_inspect.peers import Peers  # few workers need it

        peers = Peers.of_this_group()
        peers.publish(name)
    watcher = Watcher(recorder, name, dumps.shutdown_limit, peers)
    watcher.start()
    cleanup.callback(watcher.join)
    _stop_at_exit(recorder, cleanup)
    return record_calls(agent, recorder, at_shutdown=cleanup.close)


class Start:
    """Shows a worker while it is in ``init_rpc`` and, if ``init_rpc`` fails, until the next start.

    :param rank: -1 if it is not known yet.
    :param world_size: None for a dynamic group.
    """

    #: The start that is in progress; set by the hook.
    current: ClassVar[Start | None] = None
    _failed: ClassVar[Start | None] = None

    def __init__(
        self, worker: str, rank: int, world_size: int | None, backend: str, group: str
    ) -> None:
        if Start._failed is not None:
            Start._failed.end()
            Start._failed = None
        self._cleanup = contextlib.ExitStack()
        self._recorder = Recorder(
            agent=None,
            capacity=1,
            backend=backend,
            group=group,
            group_id="",
            host=socket.gethostname(),
            listener=_listener(),
            dumps="",
            dump_at_end=False,
            **_stacks(key_of_address(group), worker, self._cleanup),
        )
        _stop_at_exit(self._recorder, self._cleanup)
        self._recorder.show(worker, rank, world_size or 0)

    def join_group(self, group_id: str) -> None:
        """Show that the worker has joined a group, which is complete or open."""
        self._recorder.join_group(group_id)

    def fail(self, error: BaseException) -> None:
        """Show that ``init_rpc`` has failed, until the process ends or starts a worker again."""
        self._recorder.fail(f"{type(error).__name__}: {error}")
        Start._failed = self

    def end(self) -> None:
        """Stop showing the worker."""
        self._recorder.stop()
        self._cleanup.close()


def _stop_at_exit(recorder: Recorder, cleanup: contextlib.ExitStack) -> None:
    """Stop a recorder before the interpreter ends: while it ends, stacks cannot be read."""

    def end() -> None:
        recorder.stop()
        cleanup.close()

    atexit.register(end)
    cleanup.callback(atexit.unregister, end)


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


def _stacks(group_key: str, worker: str, cleanup: contextlib.ExitStack) -> dict[str, int]:
    """Let faulthandler write stacks to a file when a signal arrives. This needs no GIL."""
    free = (number for number in range(signal.SIGRTMAX, signal.SIGRTMIN, -1) if _is_free(number))
    number = next(free, None)
    if number is None:
        _log.warning(
            "rpc-backends inspect shows no stacks of this worker: no real-time signal is free"
        )
        return {"stack_file": -1, "stack_signal": 0}
    file = os.memfd_create(f"{sockets.MEMORY_FILE}{group_key}:{worker}", os.MFD_CLOEXEC)
    faulthandler.register(number, file=file, all_threads=True, chain=False)
    cleanup.callback(_taken.discard, number)
    cleanup.callback(faulthandler.unregister, number)
    _taken.add(number)
    return {"stack_file": file, "stack_signal": number}


def _is_free(number: int) -> bool:
    return number not in _taken and signal.getsignal(number) is signal.SIG_DFL
