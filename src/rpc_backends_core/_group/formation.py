"""How a worker joins the group that is forming on a store, and how the last one completes it.

Keys, below the generation ``g`` that the store's ``generation`` counter names: ``kind`` (``static/W`` or
``dynamic``), ``slot/RANK`` (who arrived), ``arrived`` (how many), ``group`` (the members, or why there is
no group), ``closed``, ``left``, ``ended``; for a dynamic group ``present``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import socket
import time
import uuid
from functools import partial
from typing import Any

from rpc_backends_core import _settings
from rpc_backends_core._errors import GroupError, GroupTimeoutError, StoreError
from rpc_backends_core._group.composition import arrival_of, compose, members_of
from rpc_backends_core._group.contents import MAX_ID, added, checked, parsed, shown, unsuitable
from rpc_backends_core._group.group import Group, Member, get_all, read_answer, settle
from rpc_backends_core._group.waiting import BoundedStore, logger, wait_for
from rpc_backends_core._process_state import STATE
from rpc_backends_core._time_limit import JOIN_PATIENCE

#: Seconds that workers have to read why there is no group, and between two looks whether they have.
_READING_PATIENCE = 5.0
_READING_PAUSE = 0.01
_KIND = re.compile(rb"dynamic|static/[1-9][0-9]{0,8}")
#: Torch's words: programs and its own suites look for them.
_MIXED = (
    "RPC group mixes statically and dynamically initialized members which is not supported. "
    "This worker ({name!r}, rank {rank}) wants a {wanted} group, and the store has a {found} one. "
    "Give all workers a world_size, or none of them."
)


def join_group(
    store: Any,
    name: str,
    rank: int,
    world_size: int | None,
    *,
    backend: str,
    timeout: float,
    fixed_id: int | None = None,
    join_timeout: float | None = None,
) -> Group:
    """Join the group that is forming (static) or open (dynamic) on ``store``.

    :param store: shared by the workers, for any number of groups one after the other.
    :param world_size: how many workers; None or 0 for a dynamic group.
    :param backend: its name; all workers of a static group must use the same.
    :param timeout: seconds the members wait for each other once the group is complete.
    :param fixed_id: the worker id that torch has fixed for this process in an earlier group.
    :param join_timeout: seconds to wait for the group to be complete; default
        ``RPC_BACKENDS_JOIN_TIMEOUT`` or half an hour.
    :raises GroupError: the group cannot be formed; each of its workers gets the same text.
    :raises GroupTimeoutError: it was not complete in time.
    :raises StoreError: the store has not answered a request for a minute, or for ``join_timeout`` where
        that is less.
    """
    from torch.distributed import PrefixStore

    limit = _settings.join_timeout() if join_timeout is None else join_timeout
    prefixed = PrefixStore("rpc_backends", store)
    arrival = _Arrival(prefixed, name, rank, backend, fixed_id, min(limit, JOIN_PATIENCE))
    if not world_size:
        return arrival.join_dynamic(timeout)
    return arrival.join_static(world_size, timeout, limit)


class _Arrival:
    """One worker's attempt to join.

    :param seconds: how long a request to the store may take.
    """

    def __init__(
        self, store: Any, name: str, rank: int, backend: str, fixed_id: int | None, seconds: float
    ) -> None:
        self._raw_store = store
        self._store = BoundedStore(store, seconds)
        self._name = name
        self._rank = rank
        self._fixed_id = fixed_id
        self._nonce = uuid.uuid4().hex
        self._who = {
            "name": name,
            "rank": rank,
            "backend": backend,
            "nonce": self._nonce,
            "fixed_id": fixed_id,
            "where": f"{socket.gethostname()}, process {os.getpid()}",
        }

    # --- static ------------------------------------------------------------------------------------

    def join_static(self, world_size: int, timeout: float, limit: float) -> Group:
        if not 0 <= self._rank < world_size:
            raise ValueError(
                f"rank {self._rank} of worker {self._name!r} is not below the world size {world_size}."
            )
        while True:
            generation = added(self._store, "generation", 0)
            if not self._take_kind(generation, f"static/{world_size}"):
                continue
            if not self._take_slot(generation, world_size):
                continue
            found = self._wait_for_group(generation, world_size, limit)
            if found is None:
                continue
            members, token = found
            mine = members[self._rank].autograd_id
            if sum(member.autograd_id == mine for member in members) > 1:
                _warn_of_shared_id(self._name, mine)
            return Group(
                store=self._prefixed(generation),
                name=self._name,
                rank=self._rank,
                world_size=world_size,
                members=members,
                timeout=timeout,
                autograd_id=mine,
                token=token,
            )

    def _take_slot(self, g: int, world_size: int) -> bool:
        """Stand in for our rank in generation ``g``; complete the group if we are the last."""
        mine = json.dumps(self._who)
        slot = f"{g}/slot/{self._rank}"
        if self._store.compare_set(slot, "", mine) == mine.encode():
            if added(self._store, f"{g}/arrived", 1) == world_size:
                self._complete(g, world_size)
        elif added(self._store, "generation", 0) != g:
            return False  # that group is complete; ours is the next
        else:
            # Our rank has arrived before: an attempt that was killed, whose place we take. (If it
            # lives, it finds itself left out and waits for the next group.)
            self._store.set(slot, mine)
        return True

    def _complete(self, g: int, world_size: int) -> None:
        """Make the group, if all are there; if two workers do, the first answer stands."""
        slots = [f"{g}/slot/{rank}" for rank in range(world_size)]
        if self._store.check(slots):
            try:
                answer = compose(
                    [
                        parsed(slots[rank], value, partial(arrival_of, rank))
                        for rank, value in enumerate(get_all(self._store, slots))
                    ]
                )
            except StoreError as error:
                answer = {"error": str(error)}
            settle(self._store, f"{g}/group", answer)
            self._close(g)

    def _wait_for_group(
        self, g: int, world_size: int, limit: float
    ) -> tuple[tuple[Member, ...], str] | None:
        """Return the members and the group's token, or None if the group was completed without us."""
        key = f"{g}/group"
        reader = f"RPC worker {self._name!r} (rank {self._rank})"
        try:
            value = wait_for(
                self._store,
                key,
                limit,
                lambda: self._missing(g, world_size),
                reader=reader,
                # A worker that was killed as it arrived may not have been counted.
                meanwhile=lambda: self._complete(g, world_size),
            )
        except BaseException as error:
            self._give_up(g, f"{reader} gave up: {type(error).__name__}: {error}", "GroupError")
            with contextlib.suppress(RuntimeError):  # the store may be what failed
                self._let_others_read(g)
            raise
        if value is None:
            reason = (
                f"the group of {world_size} workers was not complete after {limit:g} s. "
                f"Missing: {self._missing(g, world_size)}. "
                f"Start every worker with the same world_size and init_method; "
                f"{_settings.JOIN_TIMEOUT}=SECONDS changes how long they wait for each other."
            )
            self._give_up(g, reason, GroupTimeoutError.__name__)
            value = self._store.get(key)
        try:
            answer = read_answer(key, value, world_size)
        except Exception:
            self._let_others_read(g)
            raise
        nonces, members = checked(key, answer, partial(members_of, world_size))
        if nonces[self._rank] != self._nonce:
            return None
        token = hashlib.sha256(json.dumps(nonces).encode()).hexdigest()
        return tuple(Member(*fields) for fields in members), token

    def _give_up(self, g: int, reason: str, kind: str) -> None:
        try:
            settle(self._store, f"{g}/group", {"error": reason, "kind": kind})
            self._close(g)
        except RuntimeError:
            logger.debug("the store is gone: nobody is left to tell that %s", reason)

    def _let_others_read(self, g: int) -> None:
        """Wait, as rank 0, until all who arrived have read why there is no group.

        Rank 0 hosts a TCP store, and it is about to raise and let go of it.
        """
        try:
            read = added(self._store, f"{g}/read", 1)
        except RuntimeError:
            if self._rank == 0:
                raise
            return  # counted as the last, so the host went, before it could answer; or it had gone before
        end = time.monotonic() + _READING_PATIENCE
        while self._rank == 0 and read < added(self._store, f"{g}/arrived", 0):
            if time.monotonic() > end:
                return
            time.sleep(_READING_PAUSE)
            read = added(self._store, f"{g}/read", 0)

    def _missing(self, g: int, world_size: int) -> str:
        ranks = [r for r in range(world_size) if not self._store.check([f"{g}/slot/{r}"])]
        return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks)) or '?'}"

    # --- dynamic -----------------------------------------------------------------------------------

    def join_dynamic(self, timeout: float) -> Group:
        while True:
            generation = added(self._store, "generation", 0)
            if generation and not self._over(generation - 1):
                self._refuse_mixing("dynamic", "static")
            if self._take_kind(generation, "dynamic"):
                break
        added(self._store, f"{generation}/present", 1)
        return Group(
            store=self._prefixed(generation),
            name=self._name,
            rank=self._rank,
            world_size=None,
            members=(),
            timeout=timeout,
            autograd_id=self._claim_autograd_id(generation),
        )

    def _claim_autograd_id(self, g: int) -> int:
        """Return an id that no other container of this dynamic group has, the rank if it is free."""
        if self._fixed_id is not None:
            if not self._claim(g, self._fixed_id):
                _warn_of_shared_id(self._name, self._fixed_id)
            return self._fixed_id
        if self._claim(g, self._rank):
            return self._rank
        key = f"{g}/autograd/spare"
        for _ in range(MAX_ID + 1):
            taken = added(self._store, key, 1)
            if not 1 <= taken <= MAX_ID + 1:
                raise unsuitable(key, f"the number {taken}, or there is no id left")
            free: int = MAX_ID + 1 - taken
            if self._claim(g, free):
                return free
        raise unsuitable(key, "a number that others change")

    def _claim(self, g: int, autograd_id: int) -> bool:
        process = _process_nonce()
        taken = self._store.compare_set(f"{g}/autograd/{autograd_id}", "", process)
        return bool(taken == process.encode())

    # --- both --------------------------------------------------------------------------------------

    def _take_kind(self, g: int, wanted: str) -> bool:
        """Make generation ``g`` one of our kind; False if it was closed in the meantime.

        :raises GroupError: it is of another kind, or of another size.
        """
        found = _kind(f"{g}/kind", self._store.compare_set(f"{g}/kind", "", wanted))
        if found == wanted:
            return True
        if added(self._store, "generation", 0) != g:
            return False
        if found == "dynamic" and added(self._store, f"{g}/present", 0) <= 0:
            self._close(g)  # everybody has left that dynamic group
            return False
        if "dynamic" in (found, wanted):
            self._refuse_mixing(wanted, found)
        reason = (
            f"workers disagree on the size of the group: {self._name!r} (rank {self._rank}) says "
            f"{wanted.partition('/')[2]}, and a worker before it said {found.partition('/')[2]}. "
            "Give every worker the same world_size."
        )
        added(self._store, f"{g}/arrived", 1)  # one more to read why; that group is over
        self._give_up(g, reason, GroupError.__name__)
        self._let_others_read(g)
        raise GroupError(reason)

    def _refuse_mixing(self, wanted: str, found: str) -> None:
        wanted, found = wanted.partition("/")[0], found.partition("/")[0]
        raise GroupError(
            _MIXED.format(name=self._name, rank=self._rank, wanted=wanted, found=found)
        )

    def _over(self, g: int) -> bool:
        """Return whether the group of generation ``g`` is over: failed, or left by all."""
        if not self._store.check([f"{g}/kind"]):
            raise unsuitable("generation", f"the number {g + 1}, and there is no group {g}")
        kind = _kind(f"{g}/kind", self._store.get(f"{g}/kind"))
        if kind == "dynamic" or not self._store.check([f"{g}/group"]):
            return True
        size = int(kind.partition("/")[2])
        try:
            read_answer(f"{g}/group", self._store.get(f"{g}/group"), size)
        except StoreError:
            raise
        except Exception:  # why there was no group
            return True
        return bool(added(self._store, f"{g}/left", 0) >= size)

    def _close(self, g: int) -> None:
        """Make the next arrivals a new group, once, whoever comes first."""
        if added(self._store, f"{g}/closed", 1) == 1:
            added(self._store, "generation", 1)

    def _prefixed(self, g: int) -> Any:
        from torch.distributed import PrefixStore

        return PrefixStore(str(g), self._raw_store)


def _kind(key: str, found: bytes) -> str:
    if not _KIND.fullmatch(found):
        raise unsuitable(key, f"{shown(found)}, no kind of a group")
    return found.decode()


def _warn_of_shared_id(name: str, autograd_id: int) -> None:
    logger.warning(
        "RPC worker %r and another member both were worker %d in an earlier group, and torch keeps that "
        "id for the life of a process: do not use distributed autograd in this group.",
        name,
        autograd_id,
    )


def _process_nonce() -> str:
    """Return a text that no other process has, a forked one neither."""
    if STATE.nonce[0] != os.getpid():
        STATE.nonce = (os.getpid(), uuid.uuid4().hex)
    return STATE.nonce[1]
