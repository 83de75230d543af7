"""A group of workers on a store: its members, and the exchange of data between them."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rpc_backends_core._errors import GroupTimeoutError, StoreError
from rpc_backends_core._group.answers import get_all, read_answer, settle, whole_answer
from rpc_backends_core._group.contents import (
    MOST_BYTES,
    added,
    checked,
    number,
    parsed,
    unsuitable,
)
from rpc_backends_core._group.processes import has_ended, is_local
from rpc_backends_core._group.waiting import STORE_TIMEOUT, StoreAccess, wait_for

#: The longest timeout that a store accepts, in seconds (24 days); stands for no limit.
_FOR_EVER = (2**31 - 1) / 1000
#: How many missing workers a message names; it counts the others.
_MOST_NAMED = 5
#: How far from its own rank a worker looks for other workers on its host.
_FARTHEST_NEIGHBOUR = 64
#: The key with the rank of a worker that has stopped RPC without the others.
_STOPPED = "stopped"
_STOPPING = (
    " All workers of a static group must call shutdown(); shutdown(graceful=False) does not wait for "
    "the others."
)


@dataclass(frozen=True)
class Member:
    """One worker of a static group.

    :ivar worker_id: the id an agent should use. It is the rank, except in a process that had another
        id in an earlier group: torch's ``RRefContext`` keeps the first id for the life of the
        process.
    :ivar autograd_id: the id of its distributed autograd container, unique in the group.
    """

    name: str
    rank: int
    worker_id: int
    autograd_id: int


@dataclass
class Group:
    """The group that this process is joining or is in.

    :ivar store: a store that only this group uses.
    :ivar name: this worker's name.
    :ivar rank: this worker's rank.
    :ivar world_size: None for a dynamic group.
    :ivar members: all workers, by rank; empty for a dynamic group.
    :ivar timeout: seconds that an exchange waits for the other workers.
    :ivar token: a string unique to this group, derived from a fresh value of each member, so that
        data written for another group cannot be mistaken for this group's. None for a dynamic group.
    :ivar backend: the name of the backend that all members use.
    :ivar access: store requests with a time limit.
    """

    store: Any
    name: str
    rank: int
    world_size: int | None
    members: tuple[Member, ...]
    timeout: float
    autograd_id: int
    token: str | None = None
    backend: str = ""
    _stage: int = field(default=0, repr=False)
    _meetings: int = field(default=0, repr=False)
    _watched: dict[int, Any] | None = field(default=None, repr=False)
    _ended: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        host = f"{self.members[0].name!r} (rank 0)" if self.members else "rank 0"
        self.access = StoreAccess(self.store, host)

    @property
    def me(self) -> Member:
        """This worker among :attr:`members` (static groups)."""
        return self.members[self.rank]

    def exchange(self, payload: Any, timeout: float = 0) -> list[Any]:
        """Send ``payload`` (JSON) to all members of a static group and return theirs, by rank.

        All members must call it the same number of times, in the same order; it is also a barrier.
        Each member makes a constant number of store requests, except the last to arrive.

        :param payload: at most 1 MiB as JSON.
        :param timeout: seconds to wait for the others; 0 for the group's own timeout.
        :raises GroupError: a member called :meth:`fail`; the message is its reason.
        :raises GroupTimeoutError: a member did not arrive; the message names it.
        :raises ReplacedGroupError: in the first exchange, a member was started again. ``init_rpc`` then
            calls the backend's init handler again, with the next group.
        :raises StoreError: the store is lost, does not answer, or holds data that no member wrote.
        :raises ValueError: ``payload`` is too large.
        """
        assert self.world_size is not None, "a dynamic group has no fixed members to exchange with"
        text = json.dumps(payload)
        if len(text) > MOST_BYTES:
            raise ValueError(
                f"{self._reader} wants to exchange {len(text)} bytes; the limit is {MOST_BYTES}. "
                "Send large data by RPC."
            )
        self._stage += 1
        prefix = f"exchange/{self._stage}"
        result = exchange_result(self._stage)
        limit = timeout or self.timeout
        value = self.access.ask(
            lambda _: self._exchange(prefix, text, limit), limit + STORE_TIMEOUT
        )
        answer = read_answer(result, value, self.world_size)
        payloads = checked(result, answer.get("payloads"), lambda values: [*values])
        if len(payloads) != self.world_size:
            raise unsuitable(result, f"the exchanged data of {len(payloads)} workers")
        return payloads

    def meet(self, timeout: float = 0) -> None:
        """Wait until all members of a static group have made this call; writes nothing to the log.

        :param timeout: seconds to wait; 0 for no limit.
        :raises GroupError: a member has ended, or failed; the message names it.
        :raises GroupTimeoutError: not all members arrived in time; the message names those.
        :raises StoreError: the store is lost, does not answer, or holds data that no member wrote.
        """
        assert self.world_size is not None, "a dynamic group has no fixed members to meet"
        self._meetings += 1
        prefix = f"meeting/{self._meetings}"
        limit = timeout or _FOR_EVER
        value = self.access.ask(
            lambda _: self._exchange(prefix, "null", limit, first_news=math.inf),
            limit + STORE_TIMEOUT,
        )
        read_answer(_result(prefix), value, self.world_size)

    def _exchange(
        self, prefix: str, text: str, limit: float, first_news: float | None = None
    ) -> bytes:
        assert self.world_size is not None
        result = _result(prefix)
        self.store.set(f"{prefix}/{self.rank}", text)
        if added(self.store, f"{prefix}/arrived", 1) == self.world_size:
            keys = [f"{prefix}/{rank}" for rank in range(self.world_size)]
            values = zip(keys, get_all(self.store, keys), strict=True)
            try:
                settle(self.store, result, {"payloads": [parsed(*value) for value in values]})
            except StoreError as error:
                settle(self.store, result, {"error": str(error)})
        value = wait_for(
            self.store,
            result,
            limit,
            lambda: self._missing(prefix),
            reader=self._reader,
            waiting=self.world_size,
            # Before the first meeting, a member that has ended may be started again.
            meanwhile=partial(self._fail_if_a_member_has_ended, result) if self._meetings else None,
            first_news=first_news,
        )
        if value is None:
            reason = f"{self._reader} waited {limit:g} s for {self._missing(prefix)}."
            self._tell_failure(
                reason + _STOPPING * bool(self._meetings), GroupTimeoutError.__name__
            )
            value = bytes(self.store.get(result))
        return whole_answer(self.store, result, value, self.world_size)

    def _fail_if_a_member_has_ended(self, result: str) -> None:
        """Give an exchange an error as its result if a worker cannot take part any more.

        It has stopped RPC, or is one that this worker watches, and its process has ended.
        """
        if self.store.check([_STOPPED]):
            rank = number(_STOPPED, self.store.get(_STOPPED), len(self.members) - 1)
            reason = (
                f"RPC worker {self.members[rank].name!r} (rank {rank}) has stopped RPC and did not wait "
                "for the others, as shutdown(graceful=False) does, so its group cannot shut down "
                "together. See that worker's output for the reason."
            )
            settle(self.store, result, {"error": reason})
            return
        if self._watched is None:
            self._watched = self._neighbours()
        for rank, process in self._watched.items():
            if has_ended(process):
                member = self.members[rank]
                reason = (
                    f"RPC worker {member.name!r} (rank {rank}) has ended: its process {process[1]} was "
                    "killed, or exited without shutdown(), so its group cannot shut down together. See "
                    "that worker's output for the reason."
                )
                settle(self.store, result, {"error": reason})

    def _neighbours(self) -> dict[int, Any]:
        """Return the processes of the next lower and higher rank on this host, by rank.

        Each worker watches two others, so all are watched with few requests.
        """
        assert self.world_size is not None
        neighbours: dict[int, Any] = {}
        steps = range(1, min(self.world_size, _FARTHEST_NEIGHBOUR + 1))
        for direction in (1, -1):
            for step in steps:
                rank = (self.rank + direction * step) % self.world_size
                arrival: Any = parsed(f"slot/{rank}", self.store.get(f"slot/{rank}"))
                process = arrival.get("process") if isinstance(arrival, dict) else None
                if is_local(process):
                    neighbours[rank] = process
                    break
        return neighbours

    def fail(self, reason: str, kind: str = "GroupError") -> None:
        """Make the current and next exchange of all other members fail with ``reason``.

        :param reason: the message that every worker raises.
        :param kind: the name of the exception type they raise; see :func:`group_error`.
        :raises StoreError: the store is lost, or does not answer.
        """
        if self.world_size is not None:
            self.access.ask(lambda _: self._tell_failure(reason, kind), STORE_TIMEOUT)

    def _tell_failure(self, reason: str, kind: str) -> None:
        # Other workers can be in the same stage or meeting as this one, or in the next.
        for kind_of_wait, current in (("exchange", self._stage), ("meeting", self._meetings)):
            for count in (current, current + 1):
                if count:
                    answer = {"error": reason, "kind": kind}
                    settle(self.store, _result(f"{kind_of_wait}/{count}"), answer)

    def end(self, *, together: bool = True) -> None:
        """Record that this worker no longer uses the store. Never raises, as the store may be gone.

        :param together: whether the other workers of a static group end too. If not, and they wait for
            this one, they get an error that names it.
        """
        if self._ended:
            return
        self._ended = True
        # If the store's host has already gone, no worker is left to inform.
        with contextlib.suppress(StoreError):
            self.access.ask(lambda store: self._say_end(store, together))

    def _say_end(self, store: Any, together: bool) -> None:
        if self.world_size is not None and not together:
            store.compare_set(_STOPPED, "", str(self.rank))
        if self.world_size is None:
            store.add("present", -1)
        elif store.add("left", 1) == self.world_size:
            store.set("ended", "1")

    def wait_until_ended(self, seconds: float) -> bool:
        """Wait until every member of a static group has left; the store's host calls this."""
        if self.world_size is None:
            return self.is_over()
        try:
            done = self.access.ask(
                lambda store: wait_for(store, "ended", seconds, lambda: "the others to leave"),
                seconds + STORE_TIMEOUT,
            )
        except StoreError:
            return False
        return done is not None

    def is_over(self) -> bool:
        """Return whether all members of a dynamic group have left, or the store is gone."""
        try:
            return self.access.ask(lambda store: bool(store.add("present", 0) <= 0))
        except StoreError:
            return True

    @property
    def _reader(self) -> str:
        return f"RPC worker {self.name!r} (rank {self.rank})"

    def _missing(self, prefix: str) -> str:
        assert self.world_size is not None
        missing = missing_ranks(self.store, prefix, self.world_size)
        names = {member.rank: member.name for member in self.members}
        return shortened(f"{names.get(rank, '?')!r} (rank {rank})" for rank in missing)


def exchange_result(stage: int) -> str:
    """Return the key of the result of an exchange; the first exchange of a group has stage 1."""
    return _result(f"exchange/{stage}")


def _result(prefix: str) -> str:
    return f"{prefix}/all"


def missing_ranks(store: Any, prefix: str, world_size: int) -> list[int]:
    """Return the ranks of the workers that have not written their key below ``prefix``."""
    return [rank for rank in range(world_size) if not store.check([f"{prefix}/{rank}"])]


def shortened(missing: Iterable[str]) -> str:
    """Return the first five of what is waited for, and the number of the others."""
    shown = list(missing)
    more = len(shown) - _MOST_NAMED
    text = ", ".join(shown[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    return text or "the result: all workers have arrived"
