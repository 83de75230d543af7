"""A group of workers on a store: who its members are, and exchanging data among them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from rpc_backends_core._errors import GroupError, GroupTimeoutError
from rpc_backends_core._group.waiting import wait_for

#: Seconds that nobody waits, and a store's timeout can hold: 24 days.
_FOR_EVER = (2**31 - 1) / 1000


@dataclass(frozen=True)
class Member:
    """One worker of a static group.

    :ivar worker_id: the id an agent should use; the rank, but for a process that had another id in an
        earlier group: torch's ``RRefContext`` keeps that one for the life of the process.
    :ivar autograd_id: the id of its distributed autograd container, unique in the group.
    """

    name: str
    rank: int
    worker_id: int
    autograd_id: int


@dataclass
class Group:
    """The group that this process is joining or is in.

    :ivar store: a store that this group alone uses.
    :ivar name: this worker's name.
    :ivar rank: this worker's rank.
    :ivar world_size: None for a dynamic group.
    :ivar members: all workers, by rank; empty for a dynamic group.
    :ivar timeout: seconds that an exchange waits for the others.
    """

    store: Any
    name: str
    rank: int
    world_size: int | None
    members: tuple[Member, ...]
    timeout: float
    autograd_id: int
    _stage: int = field(default=0, repr=False)
    _meetings: int = field(default=0, repr=False)
    _ended: bool = field(default=False, repr=False)

    @property
    def me(self) -> Member:
        """This worker among :attr:`members` (static groups)."""
        return self.members[self.rank]

    def exchange(self, payload: Any) -> list[Any]:
        """Give ``payload`` (JSON) to all members of a static group and return theirs, by rank.

        Every member calls it equally often, in the same order; it is a barrier too. Each does a number
        of requests to the store that does not grow with the group, but for the last to arrive.

        :raises GroupError: a member called :meth:`fail`; its reason.
        :raises GroupTimeoutError: a member did not come; the text names it.
        """
        assert self.world_size is not None, "a dynamic group has no fixed members to exchange with"
        self._stage += 1
        prefix = f"exchange/{self._stage}"
        self.store.set(f"{prefix}/{self.rank}", json.dumps(payload))
        result = f"{prefix}/all"
        if self.store.add(f"{prefix}/arrived", 1) == self.world_size:
            keys = [f"{prefix}/{rank}" for rank in range(self.world_size)]
            payloads = [json.loads(value) for value in get_all(self.store, keys)]
            settle(self.store, result, {"payloads": payloads})
        value = wait_for(
            self.store, result, self.timeout, lambda: self._missing(prefix), reader=self._reader
        )
        if value is None:
            self.fail(
                f"worker {self.name!r} (rank {self.rank}) waited {self.timeout:g} s for "
                f"{self._missing(prefix)}",
                GroupTimeoutError.__name__,
            )
            value = self.store.get(result)
        answer = json.loads(value)
        if "error" in answer:
            raise group_error(answer)
        payloads_of_all: list[Any] = answer["payloads"]
        return payloads_of_all

    def meet(self, timeout: float = 0) -> None:
        """Wait until all members of a static group have come here, in the same call of this; silently.

        :param timeout: seconds to wait; 0 means for ever.
        :raises GroupTimeoutError: that took longer.
        """
        assert self.world_size is not None, "a dynamic group has no fixed members to meet"
        self._meetings += 1
        prefix = f"meeting/{self._meetings}"
        if self.store.add(f"{prefix}/arrived", 1) == self.world_size:
            self.store.set(f"{prefix}/all", "1")
        limit = timeout or _FOR_EVER
        done = wait_for(
            self.store, f"{prefix}/all", limit, lambda: "the others", first_news=math.inf
        )
        if done is None:
            raise GroupTimeoutError(
                f"{self._reader} waited {timeout:g} s for the other workers, and "
                f"{self.store.add(f'{prefix}/arrived', 0)} of {self.world_size} came. All workers of a "
                "static group must call shutdown(); shutdown(graceful=False) does not wait for them."
            )

    def fail(self, reason: str, kind: str = "GroupError") -> None:
        """Tell all members that wait for this one, now or in their next step, that it cannot go on.

        :param reason: what every worker is to read.
        :param kind: the name of the exception they are to raise; see :func:`group_error`.
        """
        if self.world_size is None:
            return
        # The others can be in the stage that this worker is in, or in the one after it.
        for stage in (self._stage, self._stage + 1):
            if stage:
                settle(self.store, f"exchange/{stage}/all", {"error": reason, "kind": kind})

    def end(self) -> None:
        """Say that this worker has left and uses the store no more. Never raises: it may be gone."""
        if self._ended:
            return
        self._ended = True
        try:
            if self.world_size is None:
                self.store.add("present", -1)
            elif self.store.add("left", 1) == self.world_size:
                self.store.set("ended", "1")
        except RuntimeError:
            return  # the store's host has gone before us, and nobody is left to tell

    def wait_until_ended(self, seconds: float) -> bool:
        """Wait until every member of a static group has left; the host of the store does."""
        if self.world_size is None:
            return self.is_over()
        try:
            done = wait_for(self.store, "ended", seconds, lambda: "the others to leave")
        except RuntimeError:
            return False
        return done is not None

    def is_over(self) -> bool:
        """Return whether all members of a dynamic group have left; True too if the store is gone."""
        try:
            return bool(self.store.add("present", 0) <= 0)
        except RuntimeError:
            return True

    @property
    def _reader(self) -> str:
        return f"RPC worker {self.name!r} (rank {self.rank})"

    def _missing(self, prefix: str) -> str:
        assert self.world_size is not None
        names = {member.rank: member.name for member in self.members}
        missing = [
            f"{names.get(rank, '?')!r} (rank {rank})"
            for rank in range(self.world_size)
            if not self.store.check([f"{prefix}/{rank}"])
        ]
        return ", ".join(missing) or "the last worker"


def get_all(store: Any, keys: list[str]) -> list[bytes]:
    """Return the values of ``keys``, in one request where the store can."""
    if store.has_extended_api():
        values: list[bytes] = store.multi_get(keys)
        return values
    return [store.get(key) for key in keys]


def settle(store: Any, key: str, answer: Any) -> Any:
    """Write ``answer`` (JSON) under ``key`` unless there is one, and return the one that stands."""
    return json.loads(store.compare_set(key, "", json.dumps(answer)))


def group_error(answer: dict[str, str]) -> Exception:
    """Return the error that ``answer`` tells of, under the type that its sender wanted."""
    kinds: dict[str, type[Exception]] = {
        "GroupTimeoutError": GroupTimeoutError,
        "ValueError": ValueError,
    }
    return kinds.get(answer.get("kind", ""), GroupError)(answer["error"])
