"""Dumps that a worker writes by itself: after a timeout, after a loss, and in a long ``shutdown``.

The recorder writes them on SIGUSR1 too, in C++.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rpc_backends_agents import Recorder
    from rpc_backends_inspect.peers import Peers

_log = getLogger(__name__)
#: Seconds between two checks of whether the worker is in ``shutdown``.
_PERIOD = 1.0
#: Seconds after which a shutdown takes long; torch waits for five minutes.
SHUTDOWN_LIMIT = 30.0
_API = os.path.join("torch", "distributed", "rpc", "api.py")  # noqa: PTH118, the end of a path


@dataclass(frozen=True)
class Dumps:
    """Which dumps a worker writes by itself.

    :ivar folder: the folder for the dumps; empty if it writes none.
    :ivar shutdown_limit: seconds after which a shutdown takes long.
    :ivar at_end: whether it writes a dump when it stops. ``rpc-backends trace`` draws a run from these.
    """

    folder: str = ""
    shutdown_limit: float = SHUTDOWN_LIMIT
    at_end: bool = False


NO_DUMPS = Dumps()


def folder_for(value: str) -> str:
    """Return the absolute path of the folder for dumps, and create the folder; empty if ``value`` is.

    :raises OSError: the folder cannot be created, or cannot be written to.
    """
    if not value:
        return ""
    folder = Path(value).absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} cannot be written")
    return str(folder)


class Watcher:
    """A thread that explains failed calls, and notices that ``shutdown`` takes long.

    It runs Python once a second, so that the recorder notices how long the GIL is held.

    :param limit: seconds after which a shutdown takes long.
    :param peers: finds the processes of other members; None if the worker writes no dumps.
    """

    def __init__(self, recorder: Recorder, worker: str, limit: float, peers: Peers | None) -> None:
        self._recorder = recorder
        self._worker = worker
        self._limit = limit
        self._peers = peers
        self._shutdown_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="rpc-dumps", daemon=True)

    def start(self) -> None:
        """Start the thread; it ends when the recorder stops."""
        self._thread.start()

    def join(self) -> None:
        """Wait until the thread has ended."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while (callees := self._recorder.wait_for_failures(_PERIOD)) is not None:
            if callees:
                self._recorder.explain(self._explanation("call", callees))
            if self._peers is not None:
                self._watch_shutdown(self._limit)

    def _watch_shutdown(self, limit: float) -> None:
        if not _in_shutdown():
            self._shutdown_since = None
        elif self._shutdown_since is None:
            self._shutdown_since = time.monotonic()
        elif time.monotonic() - self._shutdown_since >= limit:
            self._shutdown_since = float("inf")  # once
            _log.warning(
                "RPC worker %r has been in shutdown for %.0f s. %s",
                self._worker,
                limit,
                self._explanation("shutdown", set()),
            )

    def _explanation(self, reason: str, callees: set[str]) -> str:
        """Write a dump; return where it is, and the likely reason.

        :param callees: the workers of the calls that have failed; only a reason about them is given.
        """
        from rpc_backends_inspect import causes, workers  # few workers need them
        from rpc_backends_inspect.groups import group_of

        self._recorder.begin_explanation()  # it may take seconds, which are no wait for the GIL
        try:
            path = self._recorder.dump(reason)
            group = group_of(workers.running(), os.getpid(), self._worker)
            if group is not None and self._peers is not None:
                group = group.joined_by(self._peers.lost(group))
            explained = causes.explain(group, callees) if group is not None else []
            about = [cause for cause in explained if self._worker in cause.workers] or explained
            if about:
                workers.add_likely_reason(Path(path), about[0].text)
        except Exception as error:  # the call must get its error whatever happens here
            _log.exception("the dump of RPC worker %r failed", self._worker)
            return f"No RPC dump: {error}."
        why = (
            f"Likely reason: {about[0].text}."
            if about
            else "The workers of this group on this host show no reason."
        )
        return f"RPC dump: {path}. {why}"


def _in_shutdown() -> bool:
    for outermost in sys._current_frames().values():
        frame = outermost
        while frame:
            if frame.f_code.co_name == "shutdown" and frame.f_code.co_filename.endswith(_API):
                return True
            if frame.f_back is None:
                break
            frame = frame.f_back
    return False
