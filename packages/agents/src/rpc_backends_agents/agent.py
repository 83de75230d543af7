"""The Python classes of the transport agent, for static and dynamic groups."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
import types
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch.distributed import rpc

from rpc_backends_agents import _C
from rpc_backends_agents.addressing import Native
from rpc_backends_agents.presence import Presence, is_unreachable
from rpc_backends_core.spi import (
    GroupTimeoutError,
    RankMappingMixin,
    current_session,
    stored,
    torch_internals,
    worker_info,
)

if TYPE_CHECKING:
    import torch
    from torch.distributed.rpc import WorkerInfo

    from rpc_backends_agents.roster import Roster
    from rpc_backends_core.spi import Group

logger = logging.getLogger("rpc_backends.agents")

#: How long a leaving member waits for the deletion of RRefs, and for the requests that it serves.
_RREF_TIMEOUT = timedelta(seconds=5)
_SERVING_TIMEOUT = 5.0
#: Seconds until a leaving member asks a caller again whether it still waits.
_ASK_AGAIN = 0.5
#: The shortest timeout of an exchange, in seconds; 0 would mean the group's own timeout.
_SHORTEST_EXCHANGE = 0.1
#: Seconds between two looks for the replacement of a lost worker, and after a look that failed.
_LOOK_INTERVAL = 1.0
_LOOK_INTERVAL_AFTER_FAILURE = 30.0


@functools.cache
def class_for(kind: type[_Agent], backend: str) -> type[_Agent]:
    """Return a subclass of ``kind`` for a backend; its name begins with the backend's name."""
    if not backend:
        return kind
    words = {"__module__": kind.__module__, "__doc__": kind.__doc__}
    return types.new_class(
        f"{backend}{kind.__name__}", (kind,), exec_body=lambda ns: ns.update(words)
    )


class _Agent(_C.TransportAgent):
    """The common base class; knows the Python object of the transport.

    :ivar published: the address that the transport has returned for the peers; None if it is a record
        that is made for them only.
    """

    transport: Any
    published: str | None = None

    @property
    def address(self) -> str | None:
        """Where this worker listens, in the words of its transport; None if it does not say."""
        words = getattr(self.transport, "address", None)
        return words if isinstance(words, str) else self.published

    @property
    def encryption(self) -> str | None:
        """How messages between hosts are encrypted, or ``none``; None if the transport does not say."""
        words = getattr(self.transport, "encryption", None)
        return words if isinstance(words, str) else None

    def __repr__(self) -> str:
        worker = _C.TransportAgent.get_worker_info(self)
        return f"<{type(self).__name__} of RPC worker {worker.name!r}>"

    def get_debug_info(self) -> dict[str, str]:
        """Return the metrics, and the transport's values that are not numbers."""
        info: dict[str, str] = super().get_debug_info()
        if isinstance(self.transport, Native):
            more = self.transport.metrics()
            info.update({f"transport.{name}": value for name, value in more.items()})
        return info

    def shutdown(self) -> None:
        """Stop the agent; a second call does nothing."""
        super().shutdown()
        if isinstance(self.transport, Native):
            self.transport.close(0)


class StaticGroupAgent(_Agent):
    """The agent of a static group, whose workers start and stop together."""

    group: Group

    def join(self, shutdown: bool = False, timeout: float = 0) -> None:
        """Wait until all workers have called ``join`` and the group has no active calls.

        The workers exchange their call counts in rounds. The group is idle after two rounds in which all
        calls were answered and the counts were equal: then no message was on its way in between
        (Mattern's four counters). A request counts as answered while its function has ended and a future
        that it has returned has no value: if its caller still waited, a call would be active there.

        :param timeout: seconds to wait; 0 means the group's own timeout.
        :raises GroupTimeoutError: the timeout has passed.
        """
        limit = timeout or self.group.timeout
        end = time.monotonic() + limit
        before: list[Any] | None = None
        while True:
            left = end - time.monotonic()
            if left <= 0:
                raise GroupTimeoutError(
                    f"RPC worker {self.group.name!r} waited {limit:g} s for its group's calls to end."
                )
            super().join(shutdown, left)
            if len(self.group.members) == 1:
                return
            traffic = self.traffic()
            served = traffic.served + traffic.pending
            mine = [traffic.sent, traffic.answered, traffic.received, served]
            left = max(end - time.monotonic(), _SHORTEST_EXCHANGE)
            now = self.group.exchange(mine, timeout=round(left, 1))
            if not all(_is_traffic(metrics) for metrics in now):
                raise stored.unsuitable("exchange/...", f"{stored.shown(now)}, not call counts")
            over = all(
                sent == answered and received == served for sent, answered, received, served in now
            )
            if over and now == before:
                return
            before = now


def _is_traffic(value: Any) -> bool:
    return isinstance(value, list) and [type(number) for number in value] == [int] * 4


class RankedStaticAgent(RankMappingMixin, StaticGroupAgent):
    """The agent of a static group where a process keeps its worker id from an earlier group."""


class DynamicGroupAgent(RankMappingMixin, _Agent):
    """The agent of a dynamic group.

    Changes of the membership are not broadcast. The agent reads the member list from the store when the
    program asks for an unknown worker or for all workers, when a connection is lost, and about once a
    second while the program asks for a worker whose connection was lost: another process may have taken
    its name. When the program asks for all workers, the agent also looks for members that have died, at
    most once a second.
    """

    roster: Roster

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._lost: set[str] = set()
        self._next_look = 0.0

    def follow(self, members: dict[int, WorkerInfo]) -> None:
        """Set the members by worker id; the caller keeps them up to date. Call this before the start."""
        self.members = members
        self.presence = Presence(members, self.roster)

    def refresh(self) -> None:
        """Read the member list."""
        self.roster.refresh()

    def note_loss(self, worker_id: int) -> None:
        """Find out whether the worker has died.

        Look for its replacement, now and whenever the program asks for its name.
        """
        if worker_id in self.members:
            self._lost.add(self.members[worker_id].name)
            self.presence.check(worker_id, lost=True)
        self.refresh()

    def note_join(self, name: str) -> None:
        """Stop looking for a replacement of the worker that had this name."""
        self._lost.discard(name)

    def get_worker_info(self, who: str | int | None = None) -> WorkerInfo:
        """Return a worker by name or rank, or this one.

        :raises RuntimeError: there is no such worker.
        """
        if who is not None and (not self.knows(who) or self._may_be_replaced(who)):
            self.refresh()
            if self.roster.trouble and not self.knows(who):
                raise RuntimeError(
                    f"Unknown destination worker {who}: could not find destination among the known "
                    f"members, and the member list cannot be read: {self.roster.trouble}"
                )
        return super().get_worker_info(who)

    def _may_be_replaced(self, who: str | int) -> bool:
        """Return whether to look for a replacement of a worker now; limits how often."""
        if not self._lost or super().get_worker_info(who).name not in self._lost:
            return False
        now = time.monotonic()
        if now < self._next_look:
            return False
        failed = self.roster.trouble != ""
        self._next_look = now + (_LOOK_INTERVAL_AFTER_FAILURE if failed else _LOOK_INTERVAL)
        return True

    def get_worker_infos(self) -> list[WorkerInfo]:
        """Return the current members of the group, without those that are known to be gone."""
        self.refresh()
        absent = self.presence.absent()
        gone = {info.name for worker_id, info in self.members.items() if worker_id in absent}
        return [info for info in super().get_worker_infos() if info.name not in gone]

    def leave_group(self, timeout: float = 0) -> None:
        """Leave the group: delete RRefs, remove this worker from the member list, finish active calls.

        Requests whose functions have returned futures are answered if these get their values in time, and
        if the caller still waits for an answer.

        :param timeout: seconds to wait for active calls; 0 means a few seconds.
        """
        try:
            torch_internals.delete_rrefs(_RREF_TIMEOUT)
        except RuntimeError as error:
            logger.warning(
                "RPC worker %r is leaving, but not all of its RRefs were deleted: %s",
                self.roster.name,
                error,
            )
        self.presence.close()
        serves = int(self.get_metrics()["agent.server_active_calls"]) > 0
        if serves and not self.roster.trouble:
            self.refresh()  # a caller may have joined since this worker read the member list
        members = dict(self.members)  # leaving forgets them
        ask = functools.partial(self._ask_callers, members, {})
        ask()
        self.roster.leave()
        self.finish(timeout or _SERVING_TIMEOUT, _ASK_AGAIN, ask)

    def _ask_callers(
        self, members: dict[int, WorkerInfo], asked: dict[int, torch.futures.Future[bool]]
    ) -> None:
        """Ask each caller of a function that has returned a future whether it still waits.

        A caller that waits is asked again: another call of it may have been answered since.

        :param asked: the last question to each caller; the new ones are added.
        """
        for caller in self.callers_of_futures():
            if caller not in members or (caller in asked and not asked[caller].done()):
                continue
            me = _C.TransportAgent.get_worker_info(self)
            to = worker_info(members[caller].name, caller, caller)
            # A question that cannot be asked says nothing: the caller counts as waiting.
            with contextlib.suppress(RuntimeError):
                asked[caller] = rpc.rpc_async(to, has_calls_to, (me.id,), timeout=_SERVING_TIMEOUT)
                asked[caller].add_done_callback(
                    functools.partial(self._take_answer, members[caller])
                )

    def _take_answer(self, caller: WorkerInfo, answer: torch.futures.Future[bool]) -> None:
        try:
            waits = answer.value()
        except RuntimeError as error:
            waits = not is_unreachable(caller.name, error)
        if not waits:
            self.note_not_waiting(caller.id)


def has_calls_to(worker_id: int) -> bool:
    """Return whether a call of this worker waits for another one, which asks by RPC."""
    session = current_session()
    agents = session.agents if session is not None else []
    return any(agent.calls_to(worker_id) for agent in agents if isinstance(agent, _Agent))
