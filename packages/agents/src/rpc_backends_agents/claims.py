"""Who owns each name and each rank of a dynamic group, decided by compare-and-set.

A worker is identified by the number of its first record (see :mod:`.roster`). Keys in the group's store:

- ``name/NAME``: ``N`` if worker N joins under this name, ``N in`` if it is a member, ``0`` for no worker;
- ``rank/RANK``: ``N NAME``, the worker that has the rank, and the name under which it joins.

A worker claims its name, then its rank, and becomes a member when it replaces ``N`` by ``N in``. Another
worker may take a claim over. It takes a name with one compare-and-set of that same key. Before it takes a
rank, it replaces the holder's ``N`` by ``0``. In both cases the holder, if it is slow and not dead, can
no longer become a member. So the owner of a name and a rank is decided by one key, and a process that
dies between two requests blocks nothing.

Which claims are taken over: those of workers that have left or died, and of workers that started to
join later. Of several live workers that join at the same time, the first one therefore succeeds. The
claim of a member that does not respond is taken over after a record that it is out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from rpc_backends_core.spi import stored

T = TypeVar("T")

_OWNER_OF_NAME = re.compile(r"(?P<number>\d{1,9})(?P<member> in)?")
_OWNER_OF_RANK = re.compile(r"(?P<number>\d{1,9}) (?P<name>\S{1,256})")
_FREE = "0"
#: How many times other workers may win the race for a key.
_MOST_TRIES = 1000


class Claimant(Protocol):
    """A worker that joins, or has joined; a :class:`~.member_records.Peer` is one."""

    @property
    def number(self) -> int:
        """The number of its first record."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def rank(self) -> int:
        """Its rank."""


@dataclass(frozen=True)
class Claims:
    """The claims of one worker to its name and rank.

    :ivar me: the worker.
    :ivar ask: calls a function with the group's store, within the time limit of a request.
    :ivar find: returns the worker with a number, read from the list now; None if it has left or cannot
        become a member.
    :ivar is_alive: whether a worker is alive; the flag says whether it is a member.
    :ivar remove: records that a worker is out.
    """

    me: Claimant
    ask: Callable[[Callable[[Any], Any]], Any]
    find: Callable[[int], Any]
    is_alive: Callable[[Any, bool], bool]
    remove: Callable[[Any], None]

    def take(self) -> None:
        """Claim the name, then the rank.

        :raises RuntimeError: a live worker has the name or the rank.
        :raises StoreError: the store cannot be used, or contains data that no worker wrote.
        """
        me = self.me
        self._take(f"name/{me.name}", str(me.number), self._clear_name)
        self._take(f"rank/{me.rank}", f"{me.number} {me.name}", self._clear_rank)

    def confirm(self) -> None:
        """Become the owner of both.

        :raises RuntimeError: another worker has taken one of them over.
        """
        key, member = f"name/{self.me.name}", f"{self.me.number} in"
        owner = self._replace(key, str(self.me.number), member)
        if owner == member:
            return
        match = _matched(_OWNER_OF_NAME, key, owner)
        number = int(match["number"])
        if number:
            raise self._refusal("name", self.find(number))
        raise self._refusal("rank", None)  # a worker that took the rank has written this

    def _take(self, key: str, mine: str, clear: Callable[[str, str], None]) -> None:
        before = ""
        for _ in range(_MOST_TRIES):
            owner = self._replace(key, before, mine)
            if owner == mine:
                return
            clear(key, owner)
            before = owner
        raise stored.unsuitable(key, "a different worker each time it is read")

    def _clear_name(self, key: str, owner: str) -> None:
        """Make sure that the owner of the name can be replaced."""
        match = _matched(_OWNER_OF_NAME, key, owner)
        number = int(match["number"])
        worker = self.find(number) if number else None
        if worker is not None and (match["member"] or number < self.me.number):
            self._check_dead(worker, is_member=bool(match["member"]))
            self.remove(worker)

    def _clear_rank(self, key: str, owner: str) -> None:
        """Make sure that the owner of the rank is no member and cannot become one."""
        match = _matched(_OWNER_OF_RANK, key, owner)
        number = int(match["number"])
        worker = self.find(number)
        is_first = number < self.me.number
        if worker is not None and is_first:
            self._check_dead(worker, is_member=False)
        member = f"{number} in"
        is_member = self._replace(f"name/{match['name']}", str(number), _FREE) == member
        if worker is not None and is_member:
            self._check_dead(worker, is_member=True)
        if worker is not None and (is_first or is_member):
            self.remove(worker)

    def _check_dead(self, worker: Claimant, *, is_member: bool) -> None:
        if self.is_alive(worker, is_member):
            what = "name" if worker.name == self.me.name else "rank"
            raise self._refusal(what, worker)

    def _refusal(self, what: str, owner: Claimant | None) -> RuntimeError:
        value = self.me.name if what == "name" else self.me.rank
        who = "another worker, which joins at the same time,"
        if owner is not None:
            member = f"{owner.number} in"
            if self._replace(f"name/{owner.name}", member, member) == member:  # changes nothing
                who = f"the member {owner.name!r} (rank {owner.rank})"
            else:
                who = f"{owner.name!r} (rank {owner.rank}), which joins at the same time,"
        return RuntimeError(
            f"RPC worker {what} {value} is not unique: {who} has it. Let that worker leave first, or "
            f"choose another {what}."
        )

    def _replace(self, key: str, before: str, after: str) -> str:
        """Do a compare-and-set; return the value that the key has now."""
        value: bytes = self.ask(lambda store: bytes(store.compare_set(key, before, after)))
        return value.decode(errors="replace")


def _matched(pattern: re.Pattern[str], key: str, value: str) -> re.Match[str]:
    match = pattern.fullmatch(value)
    if match is None:
        raise stored.unsuitable(key, f"{stored.shown(value)}, which is no owner")
    return match
