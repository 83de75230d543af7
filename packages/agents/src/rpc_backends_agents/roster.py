"""The members of a dynamic group, as a log in the store that is only added to.

A worker that joins, whoever else does at the time, makes a number of requests that does not grow with the
group. Keys, in the group's store: ``records`` (how many there are), ``record/N``, and for each name, rank
and worker id that is somebody's ``name/...``, ``rank/...``, ``id/...`` with the number of that member's
first record.

Whoever reaches the store can write there too. What is read has a bound and a form, and what has another
one is told in the log and left out; a list that cannot be read at all harms nobody who is a member.
"""

from __future__ import annotations

import itertools
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch.distributed.rpc import WorkerInfo

from rpc_backends_core.spi import STORE_PATIENCE, StoreAccess, StoreError, get_all, stored

logger = logging.getLogger("rpc_backends.agents")

T = TypeVar("T")

#: Worker ids are 16 bits, signed, in torch.
_MAX_ID = 32767
#: What a record of each kind has.
_FIELDS: dict[str, dict[str, type]] = {
    "peer": {"name": str, "rank": int, "id": int, "address": str},
    "in": {"number": int},
    "out": {"number": int},
}
#: Records of a group in all its life: each worker joins and leaves once, and no id is given twice.
_MOST_RECORDS = 4 * (_MAX_ID + 1)
#: Bytes of the longest record that is looked at: many times what any worker writes.
_LARGEST_RECORD = 1 << 16
#: Records that are asked for in one request.
_CHUNK = 256
#: Records that are counted and not there, and are looked for again; the oldest are given up.
_MOST_MISSING = 512
#: What is too much for this share of the time for a request is read at the next look.
_READING_SHARE = 0.4
#: Lines in the log about records that are none, at one look.
_MOST_LINES = 8
#: Times that others may be quicker to take a name.
_MOST_TRIES = 1000


@dataclass(frozen=True)
class Peer:
    """A worker that is, or wants to be, a member.

    :ivar number: the number of the record that says so; no other worker of the group has it.
    :ivar address: by which a transport reaches it; it is not kept.
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
        member. One for which it returns False or raises is kept out; what it raises is logged.
    :param on_join: called with each new member.
    :param on_leave: called with each member that is none any more.
    :param access: how the store is asked, where others ask it too.
    :param timeout: seconds that a request may take while this worker joins.
    :ivar trouble: why the list could not be read when it was last looked at; empty if it could.
    """

    def __init__(
        self,
        store: Any,
        name: str,
        *,
        on_peer: Callable[[Peer], bool],
        on_join: Callable[[Peer], None],
        on_leave: Callable[[Peer], None],
        access: StoreAccess | None = None,
        timeout: float = 60.0,
    ) -> None:
        self.name = name
        self.trouble = ""
        self._access = access or StoreAccess(store)
        self._patience = timeout
        self._on_peer = on_peer
        self._on_join = on_join
        self._on_leave = on_leave
        self._changing = threading.RLock()
        self._applying = False
        self._looks = 0
        self._last_look = 0  # the last that went well
        self._read = 0
        self._missing: set[int] = set()
        self._peers: dict[int, Peer] = {}
        self._ids: set[int] = set()
        self._joined: set[int] = set()
        self._me: Peer | None = None

    def take_id(self, wanted: int) -> int:
        """Return a worker id that nobody has had in this group: ``wanted`` if it is free.

        :raises StoreError: there is none, or the store cannot be used.
        """
        if self._claim_new(f"id/{wanted}"):
            return wanted
        for _ in range(_MAX_ID + 1):
            taken = self._add("spare_ids", 1)
            if not 1 <= taken <= _MAX_ID + 1:
                why = f"the number {taken}; a group gives {_MAX_ID + 1} ids in all its life"
                raise stored.unsuitable("spare_ids", why)
            spare = _MAX_ID + 1 - taken
            if self._claim_new(f"id/{spare}"):
                return spare
        raise stored.unsuitable("spare_ids", "a number that others change")

    def _claim_new(self, key: str) -> bool:
        return self._add(key, 1) == 1

    def announce(self, name: str, rank: int, worker_id: int, address: str) -> Peer:
        """Say that this worker wants to join, so that the members let its messages in.

        :raises StoreError: the store cannot be used.
        """
        record = {"kind": "peer", "name": name, "rank": rank, "id": worker_id, "address": address}
        number = self._append(record, self._patience)
        self._ids.add(worker_id)
        self._me = Peer(number, name, rank, worker_id, address)
        return self._me

    def join(self, is_alive: Callable[[Peer], bool]) -> None:
        """Become a member.

        :param is_alive: whether a member is there; asked of one that has this worker's name or rank.
        :raises RuntimeError: the name or the rank is another member's.
        :raises StoreError: the store cannot be used, or holds what no worker wrote.
        """
        assert self._me is not None
        self._look(self._patience)
        self._claim("name", self._me.name, is_alive)
        self._claim("rank", str(self._me.rank), is_alive)
        self._append({"kind": "in", "number": self._me.number}, self._patience)
        self._look(self._patience)

    def leave(self) -> None:
        """Be a member no more; where the store is lost, the others see the connections end."""
        if self._me is None:
            return
        try:
            self._append({"kind": "out", "number": self._me.number}, STORE_PATIENCE)
        except StoreError as error:
            if not self.trouble:
                logger.warning(
                    "RPC worker %r leaves, and the list of members does not say so: %s",
                    self.name,
                    error,
                )

    def refresh(self) -> None:
        """Read what is new in the log. It never raises: a list that cannot be read is told in the log."""
        try:
            self._look(STORE_PATIENCE)
        except StoreError as error:
            told, self.trouble = self.trouble, str(error)
            if not told:
                logger.warning(
                    "RPC worker %r: the list of the group's members cannot be read: %s Workers that join "
                    "or leave from now on are not seen; calls among the members go on.",
                    self.name,
                    error,
                )

    def _look(self, seconds: float) -> None:
        """Read what is new, or wait for another thread that begins to after this call.

        :raises StoreError: it cannot be read.
        """
        if self._me is None:
            return
        before = self._looks
        if not self._changing.acquire(timeout=2 * seconds):
            raise StoreError("another thread of this worker has not finished reading it.")
        try:
            # What a change of the members has called looks at them: it sees what is known so far.
            if self._applying or self._last_look > before:
                return
            self._looks += 1
            found, self._missing, self._read = self._access.ask(
                lambda store: self._fetch(store, seconds * _READING_SHARE), seconds
            )
            self._last_look = self._looks
            if self.trouble:
                self.trouble = ""
                logger.warning(
                    "RPC worker %r: the list of the group's members is read again.", self.name
                )
            self._applying = True
            try:
                self._apply_all(found)
            finally:
                self._applying = False
        finally:
            self._changing.release()

    def _fetch(self, store: Any, seconds: float) -> tuple[dict[int, bytes], set[int], int]:
        """Return the records that are new, the numbers of those that are missing, and how far it came."""
        end = time.monotonic() + seconds
        # Not by add(): a TCP store ends the connection of who adds to what is no number. This worker has
        # written a record, so the count is there.
        there = stored.number("records", get_all(store, ["records"])[0], _MOST_RECORDS)
        found: dict[int, bytes] = {}
        missing, read = set(self._missing), self._read
        numbers = itertools.chain(sorted(missing), range(read + 1, there + 1))
        while chunk := list(itertools.islice(numbers, _CHUNK)):
            keys = {number: f"record/{number}" for number in chunk}
            if len(chunk) == 1 or not store.check(list(keys.values())):
                # A worker that has taken a number and is about to write, or died before it could.
                keys = {number: key for number, key in keys.items() if store.check([key])}
            if keys:
                found.update(zip(keys, get_all(store, list(keys.values())), strict=True))
            missing.update(chunk)
            missing.difference_update(keys)
            read = max(read, chunk[-1])
            if time.monotonic() > end:
                break
        return found, set(sorted(missing)[-_MOST_MISSING:]), read

    def _apply_all(self, found: dict[int, bytes]) -> None:
        wrong = []
        for number, text in sorted(found.items()):
            try:
                self._apply(number, _parse(text))
            except Exception as error:
                # One that raised here would take those after it along.
                wrong.append((number, error))
        for number, why in wrong[:_MOST_LINES]:
            if isinstance(why, _NotLetInError):
                logger.warning("RPC worker %r is not let in: %s", why.name, why)
                continue
            logger.warning(
                "RPC worker %r: record %d in the list of members is no record of a worker: %s. "
                "Somebody else writes to the store of this group.",
                self.name,
                number,
                why,
            )
        if len(wrong) > _MOST_LINES:
            logger.warning(
                "RPC worker %r: and %d records more that are left out.",
                self.name,
                len(wrong) - _MOST_LINES,
            )

    def _apply(self, number: int, record: dict[str, Any]) -> None:
        if record["kind"] == "peer":
            peer = Peer(number, record["name"], record["rank"], record["id"], record["address"])
            self._enter(peer)
            return
        peer_or_none = self._peers.get(record["number"])
        if peer_or_none is None:
            return
        if record["kind"] == "in":
            if peer_or_none.number not in self._joined:
                self._joined.add(peer_or_none.number)
                self._on_join(peer_or_none)
        elif peer_or_none.number in self._joined:
            self._joined.discard(peer_or_none.number)
            del self._peers[peer_or_none.number]
            self._on_leave(peer_or_none)

    def _enter(self, peer: Peer) -> None:
        """Take note of a worker that wants to join, if it may."""
        if self._me is None or peer.number != self._me.number:
            if peer.worker_id in self._ids:
                raise ValueError(f"its 'id' is {peer.worker_id}, which another worker has had")
            try:
                if not self._on_peer(peer):
                    return
            except Exception as error:
                raise _NotLetInError(peer.name, error) from error
            self._ids.add(peer.worker_id)
        self._peers[peer.number] = replace(peer, address="")

    def _add(self, key: str, amount: int) -> int:
        return self._access.ask(lambda store: stored.added(store, key, amount), self._patience)

    def _append(self, record: dict[str, Any], seconds: float) -> int:
        def append(store: Any) -> int:
            number = stored.added(store, "records", 1)
            if not 1 <= number <= _MOST_RECORDS:
                why = f"the number {number}, where 1 to {_MOST_RECORDS} are possible"
                raise stored.unsuitable("records", why)
            store.set(f"record/{number}", json.dumps(record))
            return number

        return self._access.ask(append, seconds)

    def _claim(self, what: str, value: str, is_alive: Callable[[Peer], bool]) -> None:
        """Take a name or a rank, from a member that has left or is gone where it is not free."""
        assert self._me is not None
        key, mine = f"{what}/{value}", str(self._me.number)
        before = ""
        for _ in range(_MOST_TRIES):
            found = self._access.ask(
                lambda store, before=before: bytes(store.compare_set(key, before, mine)),  # type: ignore[misc]
                self._patience,
            )
            holder = stored.number(key, found, _MOST_RECORDS)
            if holder == self._me.number:
                return
            before = str(holder)
            self._look(self._patience)
            other = self._peers.get(holder)
            if other is None or other.number not in self._joined:
                # It has left, or never became a member: was refused, or died as it joined. (One that
                # is joining at this moment finds its claim taken, and is refused.)
                continue
            if is_alive(other):
                raise RuntimeError(
                    f"RPC worker {what} {value} is not unique: the member {other.name!r} (rank "
                    f"{other.rank}) has it. Let that worker leave first, or choose another."
                )
            self._append({"kind": "out", "number": other.number}, self._patience)
        raise stored.unsuitable(key, "another worker each time that it is asked")


class _NotLetInError(Exception):
    """A worker is kept out, for the reason that the text is."""

    def __init__(self, name: str, reason: Exception) -> None:
        super().__init__(str(reason))
        self.name = name


def _parse(text: bytes) -> dict[str, Any]:
    """Return a record of the list; others than the workers may be able to write to the store.

    :raises ValueError: it is none.
    """
    if len(text) > _LARGEST_RECORD:
        raise ValueError(f"it has {len(text)} bytes, and at most {_LARGEST_RECORD} are read")
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
        if name in ("rank", "id") and not stored.is_id(value):
            raise ValueError(f"its {name!r} is not from 0 to {_MAX_ID}")
    if kind == "peer":
        try:
            WorkerInfo(record["name"], record["id"])
        except (RuntimeError, ValueError) as error:
            raise ValueError("its 'name' is none that torch allows") from error
    return dict(record)
