"""The transport agent as Python sees it, in a static and in a dynamic group."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rpc_backends_agents import _C
from rpc_backends_agents.addressing import Native
from rpc_backends_core.spi import GroupTimeoutError, RankMappingMixin, stored, torch_internals

if TYPE_CHECKING:
    from torch.distributed.rpc import WorkerInfo

    from rpc_backends_agents.roster import Roster
    from rpc_backends_core.spi import Group

logger = logging.getLogger("rpc_backends.agents")

#: Seconds that RRefs have to be deleted everywhere, and requests to be served, before a member leaves.
_RREF_PATIENCE = timedelta(seconds=5)
_SERVING_PATIENCE = 5.0
#: Seconds that an exchange has at least; 0 would mean the group's own timeout.
_SHORTEST_EXCHANGE = 0.1


class _Agent(_C.TransportAgent):
    """What both have: the transport as Python sees it."""

    transport: Any

    def get_debug_info(self) -> dict[str, str]:
        """Return the metrics, and what the transport has to say that is no number."""
        found: dict[str, str] = super().get_debug_info()
        if isinstance(self.transport, Native):
            more = self.transport.metrics()
            found.update({f"transport.{name}": value for name, value in more.items()})
        return found

    def shutdown(self) -> None:
        """Stop the agent; a second call does nothing."""
        super().shutdown()
        if isinstance(self.transport, Native):
            self.transport.close(0)


class StaticGroupAgent(_Agent):
    """The agent in a group whose workers all start and stop together."""

    group: Group

    def join(self, shutdown: bool = False, timeout: float = 0) -> None:
        """Wait until all workers have come here and nothing is under way anywhere.

        Two rounds in which nobody has anything under way, and between which nobody has sent or received
        anything, show that nothing was on its way between them (Mattern's four counters).

        :param timeout: seconds to wait; 0 for the group's own timeout.
        :raises GroupTimeoutError: that took too long.
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
            mine = [traffic.sent, traffic.answered, traffic.received, traffic.served]
            left = max(end - time.monotonic(), _SHORTEST_EXCHANGE)
            now = self.group.exchange(mine, timeout=round(left, 1))
            if not all(_is_traffic(one) for one in now):
                raise stored.unsuitable("exchange/...", f"{stored.shown(now)}, no counts of calls")
            over = all(
                sent == answered and received == served for sent, answered, received, served in now
            )
            if over and now == before:
                return
            before = now


def _is_traffic(found: Any) -> bool:
    return isinstance(found, list) and [type(number) for number in found] == [int] * 4


class RankedStaticAgent(RankMappingMixin, StaticGroupAgent):
    """The same, where a process keeps the worker id of an earlier group."""


class DynamicGroupAgent(RankMappingMixin, _Agent):
    """The agent in a group that workers join and leave.

    Nobody is told of a change: the list of members is in the store, and is looked at when somebody asks
    for a worker that is not known, for all workers, or when a connection is lost.
    """

    roster: Roster

    def refresh(self) -> None:
        """Look at the list of members."""
        self.roster.refresh()

    def get_worker_info(self, who: str | int | None = None) -> WorkerInfo:
        """Return a worker by name or rank, or this one.

        :raises RuntimeError: there is no such worker.
        """
        if who is not None and not self.knows(who):
            self.refresh()
            if self.roster.trouble and not self.knows(who):
                raise RuntimeError(
                    f"Unknown destination worker {who}: could not find destination among the known "
                    f"members, and the list of members cannot be read: {self.roster.trouble}"
                )
        return super().get_worker_info(who)

    def get_worker_infos(self) -> list[WorkerInfo]:
        """Return all members of the group as it is now."""
        self.refresh()
        return super().get_worker_infos()

    def leave_group(self, timeout: float = 0) -> None:
        """Finish what is under way, and take this worker off the list of members.

        :param timeout: seconds that this worker's own calls have to end; 0 for the agent's own timeout.
        """
        try:
            torch_internals.delete_rrefs(_RREF_PATIENCE)
        except RuntimeError as error:
            logger.warning(
                "RPC worker %r leaves with RRefs not deleted: %s", self.roster.name, error
            )
        self.roster.leave()
        super().join(True, timeout or _SERVING_PATIENCE)
