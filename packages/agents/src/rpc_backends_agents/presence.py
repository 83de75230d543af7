"""Which members of a dynamic group do not respond any more.

A lost connection does not mean that the member has died: the transport may connect again. So the member
is called. If the call fails, and not by a time-out, the member is absent: programs do not see it in the
list. It stays a member, because it may be behind a network that is cut for a while; it is called again
while the program asks for the list, and is back when it answers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch.distributed import rpc
from torch.distributed.rpc import WorkerInfo

from rpc_backends_core.spi import worker_info

logger = logging.getLogger("rpc_backends.agents")

#: Seconds within which a live worker responds.
_ALIVE_TIMEOUT = 3.0
#: Seconds between two calls of an absent member, and how long a reader of the list waits for answers.
_INTERVAL = 1.0
_WAIT = 0.5


def is_alive(name: str, worker_id: int) -> bool:
    """Return whether a worker responds; if it times out, assume that it is alive."""
    return _has_responded(_call(name, worker_id))


def _call(name: str, worker_id: int) -> Any:
    return rpc.rpc_async(worker_info(name, worker_id, worker_id), int, timeout=_ALIVE_TIMEOUT)


def _has_responded(future: Any) -> bool:
    try:
        future.wait()
    except RuntimeError as error:
        return "RPC ran for more than set timeout" in str(error)
    return True


class Presence:
    """Knows which members are absent.

    :param members: the members by worker id, as they are at each time.
    :param report: called with the id of a member that has become absent after a lost connection.
    """

    def __init__(self, members: Mapping[int, WorkerInfo], report: Callable[[int], None]) -> None:
        self._members = members
        self._report = report
        self._lock = threading.Condition()
        self._calls: set[int] = set()
        self._absent: set[int] = set()
        self._next_look = 0.0
        self._closed = False

    def check(self, worker_id: int, *, lost: bool = False) -> None:
        """Find out whether a member is absent; does not wait.

        :param lost: whether a connection to it was lost here; another worker may have reported it.
        """
        info = self._members.get(worker_id)
        with self._lock:
            if self._closed or info is None or worker_id in self._calls:
                return
            self._calls.add(worker_id)
        try:
            future = _call(info.name, worker_id)
        except RuntimeError:  # RPC has not started yet, or is shutting down
            with self._lock:
                self._calls.discard(worker_id)
                self._absent.add(worker_id)  # until the next look
            return
        future.add_done_callback(lambda done: self._finish(worker_id, _has_responded(done), lost))

    def absent(self) -> set[int]:
        """Return the ids of absent members, after another call to each of them."""
        now = time.monotonic()
        with self._lock:
            self._absent &= self._members.keys()
            again = set(self._absent) if now >= self._next_look else set()
            self._next_look = now + _INTERVAL if again else self._next_look
        for worker_id in again:
            self.check(worker_id)
        with self._lock:
            self._lock.wait_for(lambda: not self._calls, _WAIT)
            return set(self._absent)

    def close(self) -> None:
        """Call no member any more: this worker leaves."""
        with self._lock:
            self._closed = True

    def _finish(self, worker_id: int, responded: bool, lost: bool) -> None:
        with self._lock:
            self._calls.discard(worker_id)
            is_new = not responded and worker_id not in self._absent
            if responded:
                self._absent.discard(worker_id)
            elif worker_id in self._members:
                self._absent.add(worker_id)
            self._lock.notify_all()
            if self._closed:
                return
        if is_new and lost:
            self._report(worker_id)
