"""Which members of a dynamic group do not respond any more.

The end of a process on this host is seen without a call, and is final (:mod:`.roster`). Other members are
called once, when the program asks for the list; from then on, there is a connection to them that can be
lost.

A lost connection does not mean that the member has died: the transport may connect again. So the member
is called. If the call fails, and not by a time-out, the member is absent: programs do not see it in the
list. It stays a member, because it may be behind a network that is cut for a while; it is called again
while the program asks for the list, and is back when it answers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch.distributed import rpc
from torch.distributed.rpc import WorkerInfo

from rpc_backends_core.spi import worker_info

if TYPE_CHECKING:
    from rpc_backends_agents.roster import Roster

logger = logging.getLogger("rpc_backends.agents")

#: Seconds within which a live worker responds.
_ALIVE_TIMEOUT = 3.0
#: Seconds between two looks at the members, and how long a reader of the list waits for answers.
_INTERVAL = 1.0
_WAIT = 0.5
#: Calls of members that are made at the same time.
_MOST_CALLS = 32


def is_alive(name: str, worker_id: int) -> bool:
    """Return whether a worker responds; if it times out, assume that it is alive."""
    return _has_responded(_call(name, worker_id), name)


def _call(name: str, worker_id: int) -> Any:
    return rpc.rpc_async(worker_info(name, worker_id, worker_id), int, timeout=_ALIVE_TIMEOUT)


def is_unreachable(name: str, error: RuntimeError) -> bool:
    """Return whether a call has failed because its worker cannot be reached.

    In a time-out, and in what the worker answers, such as a refusal, the agent's words are missing.
    """
    return f"RPC to '{name}' failed: " in str(error)


def _has_responded(future: Any, name: str) -> bool:
    try:
        future.wait()
    except RuntimeError as error:
        return not is_unreachable(name, error)
    return True


class Presence:
    """Knows which members are absent.

    :param members: the members by worker id, as they are at each time.
    :param roster: the list; it gets the ids of members that have become absent after a lost connection.
    """

    def __init__(self, members: Mapping[int, WorkerInfo], roster: Roster) -> None:
        self._members = members
        self._roster = roster
        self._lock = threading.Condition()
        self._calls: set[int] = set()
        self._called: set[int] = set()
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
        future.add_done_callback(
            lambda done: self._finish(worker_id, _has_responded(done, info.name), lost)
        )

    def absent(self) -> set[int]:
        """Return the ids of absent members, after another look at all members."""
        now = time.monotonic()
        with self._lock:
            is_due = now >= self._next_look and not self._closed
            self._next_look = now + _INTERVAL if is_due else self._next_look
        if is_due:
            self._roster.remove_ended()
            self._call_others(set(self._roster.elsewhere()))
        with self._lock:
            self._absent &= self._members.keys()
            self._lock.wait_for(lambda: not self._calls, _WAIT)
            return set(self._absent)

    def _call_others(self, elsewhere: set[int]) -> None:
        """Call the absent members again, and those that were never called."""
        with self._lock:
            self._called &= elsewhere
            free = max(0, _MOST_CALLS - len(self._calls))
            members = [*(self._absent & self._members.keys()), *sorted(elsewhere - self._called)]
            self._called.update(members[:free])
        for worker_id in members[:free]:
            self.check(worker_id)

    def close(self) -> None:
        """Call no member any more: this worker leaves."""
        with self._lock:
            self._closed = True

    def _finish(self, worker_id: int, responded: bool, lost: bool) -> None:
        if not responded:
            self._roster.remove_ended()
        with self._lock:
            self._calls.discard(worker_id)
            is_new = not responded and worker_id in self._members.keys() - self._absent
            if responded:
                self._absent.discard(worker_id)
            elif worker_id in self._members:
                self._absent.add(worker_id)
            self._lock.notify_all()
            if self._closed:
                return
        if is_new and lost:
            self._roster.report_loss(worker_id)
