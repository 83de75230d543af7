"""The members of a dynamic group, as a log in the store that is only added to.

A worker that joins, whoever else does at the time, makes a number of requests that does not grow with the
group. Keys, in the group's store: ``records`` (how many there are), ``record/N``, and for each name, rank
and worker id that is somebody's ``name/...``, ``rank/...``, ``id/...`` with the number of that member's
first record.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rpc_backends_core.spi import get_all

logger = logging.getLogger("rpc_backends.agents")

#: Worker ids are 16 bits, signed, in torch.
_MAX_ID = 32767
#: What a record of each kind has.
_FIELDS: dict[str, dict[str, type]] = {
    "peer": {"name": str, "rank": int, "id": int, "address": str},
    "in": {"number": int},
    "out": {"number": int},
}


@dataclass(frozen=True)
class Peer:
    """A worker that is, or wants to be, a member.

    :ivar number: the number of the record that says so; no other worker of the group has it.
    :ivar address: by which a transport reaches it.
    """

    number: int
    name: str
    rank: int
    worker_id: int
    address: str


class Roster:
    """The list of members, as this worker knows it and adds to it.

    :param store: the group's own.
    :param name: this worker's name.
    :param on_peer: called with each worker that wants to join: its messages may come before it is a
        member. What it raises keeps that worker out, and is logged by it.
    :param on_join: called with each new member.
    :param on_leave: called with each member that is none any more.
    """

    def __init__(
        self,
        store: Any,
        name: str,
        *,
        on_peer: Callable[[Peer], bool],
        on_join: Callable[[Peer], None],
        on_leave: Callable[[Peer], None],
    ) -> None:
        self.name = name
        self._store = store
        self._on_peer = on_peer
        self._on_join = on_join
        self._on_leave = on_leave
        self._changing = threading.RLock()
        self._read = 0
        self._missing: set[int] = set()
        self._peers: dict[int, Peer] = {}
        self._joined: set[int] = set()
        self._me: Peer | None = None

    def take_id(self, wanted: int) -> int:
        """Return a worker id that nobody has had in this group: ``wanted`` if it is free."""
        if self._claim_new(f"id/{wanted}"):
            return wanted
        while True:
            spare: int = _MAX_ID + 1 - self._store.add("spare_ids", 1)
            if self._claim_new(f"id/{spare}"):
                return spare

    def _claim_new(self, key: str) -> bool:
        return bool(self._store.add(key, 1) == 1)

    def announce(self, name: str, rank: int, worker_id: int, address: str) -> Peer:
        """Say that this worker wants to join, so that the members let its messages in."""
        record = {"kind": "peer", "name": name, "rank": rank, "id": worker_id, "address": address}
        number = self._append(record)
        self._me = Peer(number, name, rank, worker_id, address)
        return self._me

    def join(self, is_alive: Callable[[Peer], bool]) -> None:
        """Become a member.

        :param is_alive: whether a member is there; asked of one that has this worker's name or rank.
        :raises RuntimeError: the name or the rank is another member's.
        """
        assert self._me is not None
        self.refresh()
        self._claim("name", self._me.name, is_alive)
        self._claim("rank", str(self._me.rank), is_alive)
        self._append({"kind": "in", "number": self._me.number})
        self.refresh()

    def leave(self) -> None:
        """Be a member no more."""
        if self._me is not None:
            self._append({"kind": "out", "number": self._me.number})

    def refresh(self) -> None:
        """Read what is new in the log."""
        with self._changing:
            there = self._store.add("records", 0)
            new = [*sorted(self._missing), *range(self._read + 1, there + 1)]
            self._read = there
            keys = {number: f"record/{number}" for number in new}
            if len(new) > 1 and self._store.check(list(keys.values())):
                found = dict(zip(new, get_all(self._store, list(keys.values())), strict=True))
            else:
                # A worker that has taken a number and is about to write, or died before it could.
                found = {
                    n: self._store.get(key) for n, key in keys.items() if self._store.check([key])
                }
            self._missing = set(new) - set(found)
            for number, text in sorted(found.items()):
                try:
                    record = _parse(text)
                except ValueError as error:
                    # One that raised here would take those after it along.
                    logger.warning(
                        "RPC worker %r: record %d in the list of members is no record of a worker: %s. "
                        "Somebody else writes to the store of this group.",
                        self.name,
                        number,
                        error,
                    )
                else:
                    self._apply(number, record)

    def _apply(self, number: int, record: dict[str, Any]) -> None:
        if record["kind"] == "peer":
            peer = Peer(number, record["name"], record["rank"], record["id"], record["address"])
            mine = self._me is not None and number == self._me.number
            if mine or self._on_peer(peer):
                self._peers[number] = peer
            return
        peer_or_none = self._peers.get(record["number"])
        if peer_or_none is None:
            return
        if record["kind"] == "in":
            self._joined.add(peer_or_none.number)
            self._on_join(peer_or_none)
        elif peer_or_none.number in self._joined:
            self._joined.discard(peer_or_none.number)
            del self._peers[peer_or_none.number]
            self._on_leave(peer_or_none)

    def _append(self, record: dict[str, Any]) -> int:
        number: int = self._store.add("records", 1)
        self._store.set(f"record/{number}", json.dumps(record))
        return number

    def _claim(self, what: str, value: str, is_alive: Callable[[Peer], bool]) -> None:
        """Take a name or a rank, from a member that has left or is gone where it is not free."""
        assert self._me is not None
        key, mine = f"{what}/{value}", str(self._me.number)
        before = ""
        while True:
            holder = self._store.compare_set(key, before, mine).decode()
            if holder == mine:
                return
            before = holder
            self.refresh()
            other = self._peers.get(int(holder))
            if other is None or other.number not in self._joined:
                # It has left, or never became a member: was refused, or died as it joined. (One that
                # is joining at this moment finds its claim taken, and is refused.)
                continue
            if is_alive(other):
                raise RuntimeError(
                    f"RPC worker {what} {value} is not unique: the member {other.name!r} (rank "
                    f"{other.rank}) has it. Let that worker leave first, or choose another."
                )
            self._append({"kind": "out", "number": other.number})


def _parse(text: bytes) -> dict[str, Any]:
    """Return a record of the list; others than the workers may be able to write to the store.

    :raises ValueError: it is none.
    """
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON ({type(error).__name__})") from error
    kind = record.get("kind") if isinstance(record, dict) else None
    fields = _FIELDS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        raise ValueError("it is of no kind that is known here")
    for name, wanted in fields.items():
        value = record.get(name)
        if type(value) is not wanted:
            raise ValueError(f"its {name!r} is of type {type(value).__name__}")
        if name in ("rank", "id") and not 0 <= int(record[name]) <= _MAX_ID:
            raise ValueError(f"its {name!r} is not from 0 to {_MAX_ID}")
    return dict(record)
