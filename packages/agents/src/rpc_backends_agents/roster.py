"""The members of a dynamic group, kept as an append-only log in the store.

A join makes a constant number of store requests: it does not grow with the group or with the number of
workers that join at the same time. Keys in the group's store: ``records`` (the number of records),
``record/N``, and for each name, rank and worker id in use ``name/...``, ``rank/...`` and ``id/...``. The
value is the number of that member's first record.

Any process that reaches the store can write to it. So every record is limited in size and checked;
a record that is not valid is logged and skipped. If the list cannot be read at all, existing members
are unaffected.
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

from rpc_backends_core.spi import STORE_TIMEOUT, StoreAccess, StoreError, get_all, stored

logger = logging.getLogger("rpc_backends.agents")

T = TypeVar("T")

#: In torch, a worker id is a signed 16-bit integer.
_MAX_ID = 32767
#: The fields of each kind of record.
_FIELDS: dict[str, dict[str, type]] = {
    "peer": {"name": str, "rank": int, "id": int, "address": str},
    "in": {"number": int},
    "out": {"number": int},
}
#: The most records of a group in its lifetime: each worker joins and leaves once, and no id is reused.
_MOST_RECORDS = 4 * (_MAX_ID + 1)
#: Bytes of the longest record that is parsed, many times more than any worker writes.
_LARGEST_RECORD = 1 << 16
#: Records that are read in one request.
_CHUNK = 256
#: The most records that are counted, not written yet, and so read again later. Older ones are given up.
_MOST_MISSING = 512
#: Reading stops after this share of a request's time limit; the next read continues.
_READING_SHARE = 0.4
#: The most log lines about invalid records in one read.
_MOST_LINES = 8
#: How many times other workers may win the race for a name.
_MOST_TRIES = 1000


@dataclass(frozen=True)
class Peer:
    """A worker that is a member, or wants to become one.

    :ivar number: the number of the worker's first record, which is unique in the group.
    :ivar address: the address for the transport; it is not kept after the transport has learned it.
    :ivar devices: what the worker declares of its accelerators; not kept either. None for nothing.
    """

    number: int
    name: str
    rank: int
    worker_id: int
    address: str
    devices: Any = None


class Roster:
    """Reads the member list, and adds this worker's own records to it.

    :param store: the group's store.
    :param name: this worker's name.
    :param on_peer: called with each worker that wants to join; messages from that worker may arrive
        before it is a member. If this returns False or raises, the worker is kept out; an exception is
        logged.
    :param on_join: called with each new member.
    :param on_leave: called with each member that has left.
    :param access: shared access to the store, if other code uses the store, too.
    :param timeout: seconds that a store request may take while this worker joins.
    :ivar trouble: why the last read of the list failed; empty if it succeeded.
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
        self._timeout = timeout
        self._on_peer = on_peer
        self._on_join = on_join
        self._on_leave = on_leave
        self._changing = threading.RLock()
        self._applying = False
        self._looks = 0
        self._last_look = 0  # the last successful one
        self._read = 0
        self._missing: set[int] = set()
        self._peers: dict[int, Peer] = {}
        self._ids: set[int] = set()
        self._joined: set[int] = set()
        self._me: Peer | None = None

    def take_id(self, wanted: int) -> int:
        """Reserve a worker id that was never used in this group, ``wanted`` if it is free.

        :raises StoreError: no id is free, or the store cannot be used.
        """
        if self._claim_new(f"id/{wanted}"):
            return wanted
        for _ in range(_MAX_ID + 1):
            taken = self._add("spare_ids", 1)
            if not 1 <= taken <= _MAX_ID + 1:
                why = f"the number {taken}, more than the {_MAX_ID + 1} ids of a group"
                raise stored.unsuitable("spare_ids", why)
            spare = _MAX_ID + 1 - taken
            if self._claim_new(f"id/{spare}"):
                return spare
        raise stored.unsuitable("spare_ids", "a number that other processes change")

    def _claim_new(self, key: str) -> bool:
        return self._add(key, 1) == 1

    def announce(
        self, name: str, rank: int, worker_id: int, address: str, devices: Any = None
    ) -> Peer:
        """Announce that this worker wants to join, so that the members accept its messages.

        :param devices: what the worker declares of its accelerators, for JSON; None for nothing.
        :raises StoreError: the store cannot be used.
        """
        record = {"kind": "peer", "name": name, "rank": rank, "id": worker_id, "address": address}
        if devices is not None:
            record["devices"] = devices
        number = self._append(record, self._timeout)
        self._ids.add(worker_id)
        self._me = Peer(number, name, rank, worker_id, address, devices)
        return self._me

    def join(
        self, is_alive: Callable[[Peer], bool], admit: Callable[[], None] = lambda: None
    ) -> None:
        """Become a member.

        :param is_alive: returns whether a member is alive; called for a member that has this worker's
            name or rank.
        :param admit: called when the members are known, before this worker becomes one; its exception
            ends the start.
        :raises RuntimeError: another member that is alive has the name or the rank.
        :raises StoreError: the store cannot be used, or contains data that no worker wrote.
        """
        assert self._me is not None
        self._look(self._timeout)
        self._claim("name", self._me.name, is_alive)
        self._claim("rank", str(self._me.rank), is_alive)
        admit()
        self._append({"kind": "in", "number": self._me.number}, self._timeout)
        self._look(self._timeout)

    def leave(self) -> None:
        """Leave the group. If the store is lost, the others only see their connections end."""
        if self._me is None:
            return
        try:
            self._append({"kind": "out", "number": self._me.number}, STORE_TIMEOUT)
        except StoreError as error:
            if not self.trouble:
                logger.warning(
                    "RPC worker %r is leaving, but could not remove itself from the member list: %s",
                    self.name,
                    error,
                )

    def refresh(self) -> None:
        """Read the new records. Never raises: a failure to read is logged."""
        try:
            self._look(STORE_TIMEOUT)
        except StoreError as error:
            told, self.trouble = self.trouble, str(error)
            if not told:
                logger.warning(
                    "RPC worker %r cannot read the member list of its group: %s It does not see workers "
                    "that join or leave from now on; calls between known members are unaffected.",
                    self.name,
                    error,
                )

    def _look(self, seconds: float) -> None:
        """Read the new records, or wait for another thread that started to read them after this call.

        :raises StoreError: they cannot be read.
        """
        if self._me is None:
            return
        before = self._looks
        if not self._changing.acquire(timeout=2 * seconds):
            raise StoreError("another thread of this worker is still reading it.")
        try:
            # If a callback below calls refresh(), it gets the members that are known so far.
            if self._applying or self._last_look > before:
                return
            self._looks += 1
            found, self._missing, self._read = self._access.ask(
                lambda store: self._fetch(store, seconds * _READING_SHARE), seconds
            )
            self._last_look = self._looks
            if self.trouble:
                self.trouble = ""
                logger.warning("RPC worker %r can read the member list again.", self.name)
            self._applying = True
            try:
                self._apply_all(found)
            finally:
                self._applying = False
        finally:
            self._changing.release()

    def _fetch(self, store: Any, seconds: float) -> tuple[dict[int, bytes], set[int], int]:
        """Return the new records, the numbers of missing records, and the number of the last one read."""
        end = time.monotonic() + seconds
        # add() would be unsafe: a TCP store closes the connection if the value is no number. get() does
        # not have to wait, because this worker has written a record.
        there = stored.number("records", get_all(store, ["records"])[0], _MOST_RECORDS)
        found: dict[int, bytes] = {}
        missing, read = set(self._missing), self._read
        numbers = itertools.chain(sorted(missing), range(read + 1, there + 1))
        while chunk := list(itertools.islice(numbers, _CHUNK)):
            keys = {number: f"record/{number}" for number in chunk}
            if len(chunk) == 1 or not store.check(list(keys.values())):
                # A worker has taken a number, but has not written the record yet, or died before that.
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
                # An invalid record must not stop the records after it.
                wrong.append((number, error))
        for number, why in wrong[:_MOST_LINES]:
            if isinstance(why, _NotLetInError):
                logger.warning("RPC worker %r is not let in: %s", why.name, why)
                continue
            logger.warning(
                "RPC worker %r ignores record %d in the member list, which is not valid: %s. Another "
                "program writes to the store of this group.",
                self.name,
                number,
                why,
            )
        if len(wrong) > _MOST_LINES:
            logger.warning(
                "RPC worker %r ignores %d more records that are not valid.",
                self.name,
                len(wrong) - _MOST_LINES,
            )

    def _apply(self, number: int, record: dict[str, Any]) -> None:
        if record["kind"] == "peer":
            peer = Peer(
                number,
                record["name"],
                record["rank"],
                record["id"],
                record["address"],
                record.get("devices"),
            )
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
        """Add a worker that wants to join, unless it is kept out."""
        if self._me is None or peer.number != self._me.number:
            if peer.worker_id in self._ids:
                raise ValueError(f"its 'id' is {peer.worker_id}, which another worker has had")
            try:
                if not self._on_peer(peer):
                    return
            except Exception as error:
                raise _NotLetInError(peer.name, error) from error
            self._ids.add(peer.worker_id)
        self._peers[peer.number] = replace(peer, address="", devices=None)

    def _add(self, key: str, amount: int) -> int:
        return self._access.ask(lambda store: stored.added(store, key, amount), self._timeout)

    def _append(self, record: dict[str, Any], seconds: float) -> int:
        def append(store: Any) -> int:
            number = stored.added(store, "records", 1)
            if not 1 <= number <= _MOST_RECORDS:
                why = f"the number {number}, which is not from 1 to {_MOST_RECORDS}"
                raise stored.unsuitable("records", why)
            store.set(f"record/{number}", json.dumps(record))
            return number

        return self._access.ask(append, seconds)

    def _claim(self, what: str, value: str, is_alive: Callable[[Peer], bool]) -> None:
        """Claim a name or a rank; if it is taken, take it over from a member that has left or died."""
        assert self._me is not None
        key, mine = f"{what}/{value}", str(self._me.number)
        before = ""
        for _ in range(_MOST_TRIES):
            found = self._access.ask(
                lambda store, before=before: bytes(store.compare_set(key, before, mine)),  # type: ignore[misc]
                self._timeout,
            )
            holder = stored.number(key, found, _MOST_RECORDS)
            if holder == self._me.number:
                return
            before = str(holder)
            self._look(self._timeout)
            other = self._peers.get(holder)
            if other is None or other.number not in self._joined:
                # The holder has left or never became a member: it was refused, or died while it joined.
                # (If it is joining right now, it finds its claim taken and is refused.)
                continue
            if is_alive(other):
                raise RuntimeError(
                    f"RPC worker {what} {value} is not unique: the member {other.name!r} (rank "
                    f"{other.rank}) has it. Let that worker leave first, or choose another {what}."
                )
            self._append({"kind": "out", "number": other.number}, self._timeout)
        raise stored.unsuitable(key, "a different worker each time it is read")


class _NotLetInError(Exception):
    """A worker is kept out; the text is the reason."""

    def __init__(self, name: str, reason: Exception) -> None:
        super().__init__(str(reason))
        self.name = name


def _parse(text: bytes) -> dict[str, Any]:
    """Parse and check a record of the list; processes outside the group may have written it.

    :raises ValueError: the record is not valid.
    """
    if len(text) > _LARGEST_RECORD:
        raise ValueError(f"it has {len(text)} bytes; at most {_LARGEST_RECORD} are read")
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not valid JSON ({type(error).__name__})") from error
    kind = record.get("kind") if isinstance(record, dict) else None
    fields = _FIELDS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        raise ValueError("its kind is unknown")
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
            raise ValueError("torch does not allow its 'name'") from error
    return dict(record)
