"""The members of a dynamic group, kept as an append-only log in the store.

A join makes a constant number of store requests: it does not grow with the group or with the number of
workers that join at the same time. Keys in the group's store: ``records`` (the number of records),
``record/N``, and ``id/...`` for each worker id in use. Names and ranks have owners (:mod:`.claims`): a
worker writes the record that it is a member only after it has become the owner of both. A record that a
worker is out is final.

A record names the process of its worker. A worker of the same host sees when that process ends, and then
writes that the member is out. That a process has ended is final too, so it needs no vote.

Any process that reaches the store can write to it. So every record is checked (:mod:`.member_records`);
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
from dataclasses import replace
from typing import Any, TypeVar

from rpc_backends_agents import member_records
from rpc_backends_agents.claims import Claims
from rpc_backends_agents.member_records import MAX_ID, Peer
from rpc_backends_core.spi import (
    STORE_TIMEOUT,
    GroupError,
    StoreAccess,
    StoreError,
    get_all,
    processes,
    stored,
)

logger = logging.getLogger("rpc_backends.agents")

T = TypeVar("T")

#: The most records of a group in its lifetime: each worker joins and leaves once, and no id is reused.
_MOST_RECORDS = 8 * (MAX_ID + 1)
#: How many times the loss of one worker is reported: its connections may be lost for a while only.
_MOST_REPORTS = 4
#: How many workers record the end of one process: the first may die before it has written the record.
_MOST_WRITERS = 2
#: Records that are read in one request.
_CHUNK = 256
#: The most records that are counted, not written yet, and so read again later. Older ones are given up.
_MOST_MISSING = 512
#: Reading stops after this share of a request's time limit; the next read continues.
_READING_SHARE = 0.4
#: The most log lines about invalid records in one read.
_MOST_LINES = 8


def _has_ended(peer: Peer) -> bool:
    return bool(peer.process) and processes.has_ended([*peer.process])


class Roster:
    """Reads the member list, and adds this worker's own records to it.

    :param store: the group's store.
    :param name: this worker's name.
    :param on_peer: called with each worker that wants to join; messages from that worker may arrive
        before it is a member. If this returns False or raises, the worker is kept out; an exception is
        logged.
    :param on_join: called with each new member.
    :param on_leave: called with each worker that has left: a member, or one that gave up joining; and
        with whether its process has ended instead, without leaving.
    :param on_loss: called with a member to which another worker has lost its connection.
    :param has_ended: whether the process of a worker has certainly ended.
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
        on_leave: Callable[[Peer, bool], None],
        on_loss: Callable[[Peer], None] = lambda peer: None,
        has_ended: Callable[[Peer], bool] = _has_ended,
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
        self._on_loss = on_loss
        self._has_ended = has_ended
        self._reports: dict[int, int] = {}
        self._changing = threading.RLock()
        self._applying = False
        self._looks = 0
        self._last_look = 0  # the last successful one
        self._read = 0
        self._missing: set[int] = set()
        self._peers: dict[int, Peer] = {}
        self._kept_out: dict[int, Peer] = {}
        # Why members are kept out, by the number of their first record.
        self._refusals: dict[int, Exception] = {}
        self._refused_members: set[int] = set()
        self._ids: set[int] = set()
        self._joined: set[int] = set()
        # Kinds of records about workers whose first record is still missing.
        self._early: dict[int, set[str]] = {}
        self._me: Peer | None = None
        self._mine: dict[int, bytes] = {}  # the records that this worker wrote when it joined
        self._changed = 0  # the number of one that the store has with other content
        self._is_leaving = False

    def take_id(self, wanted: int) -> int:
        """Reserve a worker id that was never used in this group, ``wanted`` if it is free.

        :raises StoreError: no id is free, or the store cannot be used.
        """
        if self._claim_new(f"id/{wanted}"):
            return wanted
        for _ in range(MAX_ID + 1):
            taken = self._add("spare_ids", 1)
            if not 1 <= taken <= MAX_ID + 1:
                why = f"the number {taken}, more than the {MAX_ID + 1} ids of a group"
                raise stored.unsuitable("spare_ids", why)
            spare = MAX_ID + 1 - taken
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
        if process := processes.this_process():
            record["process"] = process
        number = self._append(record, self._timeout, self._mine)
        self._ids.add(worker_id)
        self._me = Peer(number, name, rank, worker_id, address, devices)
        return self._me

    def join(
        self, is_alive: Callable[[Peer], bool], admit: Callable[[], None] = lambda: None
    ) -> None:
        """Become a member.

        :param is_alive: returns whether a worker is alive; called for one that has this worker's name or
            rank, and is a member or joins.
        :param admit: called when the members are known, before this worker becomes one; its exception
            ends the start.
        :raises RuntimeError: another worker that is alive has the name or the rank.
        :raises GroupError: there are members, and none of them can be let in.
        :raises StoreError: the store cannot be used, or contains data that no worker wrote; a record of
            this worker was changed there, so that no member lets it in.
        """
        assert self._me is not None
        self._look_at_own_records()
        self.remove_ended()
        claims = Claims(
            self._me,
            ask=lambda request: self._access.ask(request, self._timeout),
            find=self._find,
            is_alive=lambda peer, member: self._may_live(peer, is_member=member, ask=is_alive),
            remove=self._remove,
        )
        claims.take()
        admit()
        claims.confirm()
        number = self._me.number
        self._append({"kind": "in", "number": number}, self._timeout, self._mine)
        self._look_at_own_records()
        if number not in self._joined:
            raise RuntimeError(
                f"RPC worker {self.name!r} cannot join its group: another worker has taken over its name "
                "or its rank, because this worker did not respond. Start it again under another name "
                "and rank."
            )
        if self._refused_members and self._joined == {number}:
            reason = self._refusals[min(self._refused_members)]
            raise GroupError(
                f"RPC worker {self.name!r} cannot join its group, because it can reach none of its "
                f"members: {reason} If those members have ended, start the group with a new store."
            ) from reason.__cause__

    def _look_at_own_records(self) -> None:
        """Read the new records.

        :raises StoreError: one of this worker's own was changed.
        """
        self._look(self._timeout)
        if self._changed:
            why = f"a record that differs from the one that RPC worker {self.name!r} wrote"
            raise stored.unsuitable(f"record/{self._changed}", why)

    def _find(self, number: int) -> Peer | None:
        """Return the worker with this number, unless it has left or its record is not valid."""
        self._look(self._timeout)
        return self._peers.get(number) or self._kept_out.get(number)

    def _may_live(self, peer: Peer, *, is_member: bool, ask: Callable[[Peer], bool]) -> bool:
        if self._has_ended(peer):
            return False
        # A worker that is kept out cannot be asked. A joining one is denied membership then.
        return is_member if peer.number in self._kept_out else ask(peer)

    def _remove(self, peer: Peer) -> None:
        self._append({"kind": "out", "number": peer.number}, self._timeout)

    def leave(self) -> None:
        """Leave the group. If the store is lost, the others only see their connections end."""
        if self._me is None:
            return
        self._is_leaving = True
        try:
            self._append({"kind": "out", "number": self._me.number}, STORE_TIMEOUT)
        except StoreError as error:
            if not self.trouble:
                logger.warning(
                    "RPC worker %r is leaving, but could not remove itself from the member list: %s",
                    self.name,
                    error,
                )

    def report_loss(self, worker_id: int) -> None:
        """Record that this worker has lost a member, so that the others look after it. Never raises."""
        self.refresh()
        # Copies, because another thread may remove the member; it may hold the lock for long.
        peers, joined = self._peers.copy(), self._joined.copy()
        numbers = [
            number for number in joined if number in peers and peers[number].worker_id == worker_id
        ]
        try:
            for number in numbers:
                count = self._reports.get(number, 0)
                # Others may have lost it, too: one of them writes.
                if count < _MOST_REPORTS and self._claim_new(f"lost/{number}/{count}"):
                    self._append({"kind": "lost", "number": number}, STORE_TIMEOUT)
        except StoreError as error:
            logger.debug("the loss of a member is not reported to the others: %s", error)

    def elsewhere(self) -> list[int]:
        """Return the ids of the other members whose processes cannot be seen from here."""
        with self._changing:
            members = [self._peers[number] for number in sorted(self._joined)]
        return [
            peer.worker_id
            for peer in members
            if not peer.process and self._me is not None and peer.number != self._me.number
        ]

    def remove_ended(self) -> None:
        """Remove members whose process has ended on this host, and record that. Never raises."""
        if not self._changing.acquire(timeout=STORE_TIMEOUT):
            return
        try:
            if self._applying:
                return
            members = [self._peers[number] for number in sorted(self._joined)]
            ended = [peer for peer in members if self._has_ended(peer)]
            self._applying = True
            try:
                for peer in ended:
                    self._drop(peer, ended=True)
            finally:
                self._applying = False
        finally:
            self._changing.release()
        try:
            for peer in ended:
                # Others may have seen it, too.
                if self._add(f"ended/{peer.number}", 1, STORE_TIMEOUT) <= _MOST_WRITERS:
                    record = {"kind": "out", "number": peer.number, "ended": True}
                    self._append(record, STORE_TIMEOUT)
        except StoreError as error:
            logger.debug("the end of a member is not recorded for the others: %s", error)

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
            records, self._missing, self._read = self._access.ask(
                lambda store: self._fetch(store, seconds * _READING_SHARE), seconds
            )
            self._early = {
                about: self._early[about]
                for about in self._early.keys() & (self._missing | records.keys())
            }
            self._last_look = self._looks
            if self.trouble:
                self.trouble = ""
                logger.warning("RPC worker %r can read the member list again.", self.name)
            self._applying = True
            try:
                self._apply_all(records)
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
        records: dict[int, bytes] = {}
        missing, read = set(self._missing), self._read
        numbers = itertools.chain(sorted(missing), range(read + 1, there + 1))
        while chunk := list(itertools.islice(numbers, _CHUNK)):
            keys = {number: f"record/{number}" for number in chunk}
            if len(chunk) == 1 or not store.check(list(keys.values())):
                # A worker has taken a number, but has not written the record yet, or died before that.
                keys = {number: key for number, key in keys.items() if store.check([key])}
            if keys:
                records.update(zip(keys, get_all(store, list(keys.values())), strict=True))
            missing.update(chunk)
            missing.difference_update(keys)
            read = max(read, chunk[-1])
            if time.monotonic() > end:
                break
        return records, set(sorted(missing)[-_MOST_MISSING:]), read

    def _apply_all(self, records: dict[int, bytes]) -> None:
        wrong: list[tuple[int, Exception]] = []
        for number, text in sorted(records.items()):
            if text != self._mine.get(number, text):
                self._changed = number
                continue
            try:
                self._apply(number, member_records.parse(text))
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
            peer = member_records.peer_of(number, record)
            early = self._early.pop(number, set())
            self._enter(peer)
            for kind in sorted(early):  # "in" before "out"
                self._apply(number, {"kind": kind, "number": number})
            return
        about = record["number"]
        if about in self._missing and record["kind"] != "lost":
            self._early.setdefault(about, set()).add(record["kind"])
            return
        peer_or_none = self._peers.get(about)
        if record["kind"] == "out":
            self._kept_out.pop(about, None)
            self._refused_members.discard(about)
        elif record["kind"] == "in" and about in self._refusals:
            self._refused_members.add(about)
        if peer_or_none is None:
            return
        if record["kind"] == "lost":
            self._reports[about] = self._reports.get(about, 0) + 1
            if about in self._joined and self._me is not None and about != self._me.number:
                self._on_loss(peer_or_none)
        elif record["kind"] == "out":
            self._drop(peer_or_none, ended=record.get("ended") is True)
        elif about not in self._joined:
            self._joined.add(about)
            self._on_join(peer_or_none)

    def _drop(self, peer: Peer, *, ended: bool) -> None:
        """Take in that a worker is out: a member, or one that did not become a member.

        :param ended: whether its process has ended, and it did not leave.
        """
        if self._me is not None and peer.number == self._me.number and not self._is_leaving:
            logger.warning(
                "RPC worker %r is no longer a member of its group: another worker has taken over its "
                "name or its rank, because this worker did not respond. Start it again.",
                self.name,
            )
        self._joined.discard(peer.number)
        self._reports.pop(peer.number, None)
        del self._peers[peer.number]
        self._on_leave(peer, ended)

    def _enter(self, peer: Peer) -> None:
        """Add a worker that wants to join, unless it is kept out."""
        stripped = replace(peer, address="", devices=None)
        if self._me is None or peer.number != self._me.number:
            if peer.worker_id in self._ids:
                raise ValueError(f"its 'id' is {peer.worker_id}, which another worker has had")
            self._kept_out[peer.number] = stripped
            try:
                if not self._on_peer(peer):
                    return
            except Exception as error:
                self._refusals[peer.number] = error
                raise _NotLetInError(peer.name, error) from error
            del self._kept_out[peer.number]
            self._ids.add(peer.worker_id)
        self._peers[peer.number] = stripped

    def _add(self, key: str, amount: int, seconds: float | None = None) -> int:
        limit = self._timeout if seconds is None else seconds
        return self._access.ask(lambda store: stored.added(store, key, amount), limit)

    def _append(
        self, record: dict[str, Any], seconds: float, kept: dict[int, bytes] | None = None
    ) -> int:
        """Append a record; return its number.

        :param kept: gets the record, too, by its number, before the store has it.
        """
        text = json.dumps(record)

        def append(store: Any) -> int:
            number = stored.added(store, "records", 1)
            if not 1 <= number <= _MOST_RECORDS:
                why = f"the number {number}, which is not from 1 to {_MOST_RECORDS}"
                raise stored.unsuitable("records", why)
            if kept is not None:
                kept[number] = text.encode()
            store.set(f"record/{number}", text)
            return number

        return self._access.ask(append, seconds)


class _NotLetInError(Exception):
    """A worker is kept out; the text is the reason."""

    def __init__(self, name: str, reason: Exception) -> None:
        super().__init__(str(reason))
        self.name = name
