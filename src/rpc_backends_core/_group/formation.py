"""How a worker joins the group forming on a store, and how the last worker completes it.

The store's counter ``generation`` names the current generation ``g``. Keys below ``g``: ``kind``
(``static/W`` or ``dynamic``), ``slot/RANK`` (the worker that arrived), ``arrived`` (their number),
``group`` (the members, or the reason for failure), ``left``, ``ended``; in a dynamic group also
``present``.
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
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from rpc_backends_core import _settings
from rpc_backends_core._errors import GroupError, GroupTimeoutError, StoreError
from rpc_backends_core._group.answers import (
    ReplacedGroupError,
    get_all,
    has_all,
    read_answer,
    settle,
    whole_answer,
)
from rpc_backends_core._group.composition import arrival_of, compose, members_of
from rpc_backends_core._group.contents import MAX_ID, added, checked, parsed, shown, unsuitable
from rpc_backends_core._group.group import (
    Group,
    Member,
    exchange_result,
    missing_ranks,
    shortened,
)
from rpc_backends_core._group.processes import this_process
from rpc_backends_core._group.terms import GroupTerm, disagreement, read, written
from rpc_backends_core._group.waiting import BoundedStore, logger, wait_for
from rpc_backends_core._process_state import STATE
from rpc_backends_core._time_limit import JOIN_TIMEOUT

#: Seconds that workers have to read why there is no group, and seconds between two checks of that.
_READING_TIMEOUT = 5.0
_READING_PAUSE = 0.01
_KIND = re.compile(rb"dynamic|static/[1-9][0-9]{0,8}")
#: Torch's own wording: programs and torch's test suites match it.
_MIXED = (
    "RPC group mixes statically and dynamically initialized members which is not supported. "
    "This worker ({name!r}, rank {rank}) asks for a {wanted} group, but the group on the store is "
    "{stored}. Pass world_size to all workers or to none."
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
    terms: Iterable[GroupTerm] = (),
) -> Group:
    """Join the group that is forming (static) or open (dynamic) on ``store``.

    :param store: shared by the workers; it serves any number of groups, one after the other.
    :param world_size: the number of workers; None or 0 for a dynamic group.
    :param backend: the backend's name; all workers of a static group must use the same one.
    :param timeout: seconds that members wait for each other once the group is complete.
    :param fixed_id: the worker id that torch has fixed for this process in an earlier group.
    :param join_timeout: seconds to wait until the group is complete; by default
        ``RPC_BACKENDS_JOIN_TIMEOUT``, or half an hour.
    :param terms: what this worker states of itself, and demands of the others.
    :raises GroupError: the group cannot be formed; all its workers raise the same message. In a dynamic
        group, only the worker that joins raises it.
    :raises GroupTimeoutError: the group was not complete in time.
    :raises StoreError: the store did not answer a request for a minute, or for ``join_timeout`` if that
        is less.
    """
    from torch.distributed import PrefixStore

    limit = _settings.join_timeout() if join_timeout is None else join_timeout
    prefixed = PrefixStore("rpc_backends", store)
    arrival = _Arrival(
        prefixed, name, rank, backend, fixed_id, min(limit, JOIN_TIMEOUT), written(terms)
    )
    if world_size:
        group = arrival.join_static(world_size, timeout, limit)
    else:
        group = arrival.join_dynamic(timeout)
    group.backend = backend
    return group


class _Arrival:
    """One worker's attempt to join.

    :param seconds: how long a request to the store may take.
    """

    def __init__(
        self,
        store: Any,
        name: str,
        rank: int,
        backend: str,
        fixed_id: int | None,
        seconds: float,
        terms: dict[str, list[str]],
    ) -> None:
        self._raw_store = store
        self._store = BoundedStore(store, seconds)
        self._name = name
        self._rank = rank
        self._fixed_id = fixed_id
        self._reader = f"RPC worker {name!r} (rank {rank})"
        self._nonce = uuid.uuid4().hex
        self._who = {
            "name": name,
            "rank": rank,
            "backend": backend,
            "nonce": self._nonce,
            "fixed_id": fixed_id,
            "where": f"{socket.gethostname()}, process {os.getpid()}",
            "process": this_process(),
        }
        self._terms = terms
        if terms:
            self._who["terms"] = terms

    # --- static ------------------------------------------------------------------------------------

    def join_static(self, world_size: int, timeout: float, limit: float) -> Group:
        if world_size < 0:
            raise ValueError(
                f"world_size is {world_size} for {self._name!r}; it must be the number of workers, or "
                "None for a dynamic group."
            )
        if not 0 <= self._rank < world_size:
            raise ValueError(
                f"rank {self._rank} of worker {self._name!r} is not below the world size {world_size}."
            )
        joined = -1  # the last generation in which this worker has arrived
        while True:
            generation = added(self._store, "generation", 0)
            if generation and joined != generation - 1:
                self._replace(generation - 1)
            if not self._take_kind(generation, f"static/{world_size}"):
                continue
            with self._telling_others_of_an_error(generation):
                if not self._take_slot(generation, world_size):
                    continue
                joined = generation
                value = self._wait_for_answer(generation, world_size, limit)
            group = self._read_group(generation, world_size, limit, value)
            if group is None:
                continue
            members, token = group
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
        """Register this worker's rank in generation ``g``; complete the group if it is the last."""
        mine = json.dumps(self._who)
        slot = f"{g}/slot/{self._rank}"
        if self._store.compare_set(slot, "", mine) == mine.encode():
            if added(self._store, f"{g}/arrived", 1) == world_size:
                self._complete(g, world_size)
        elif added(self._store, "generation", 0) != g:
            return False  # that group is complete; join the next one
        else:
            # This rank has arrived before, probably in a process that was killed: take its place. (If
            # that process still lives, it sees that it was replaced and waits for the next group.)
            self._store.set(slot, mine)
        return True

    def _complete(self, g: int, world_size: int) -> None:
        """Form the group if all workers have arrived; if two workers do so, the first result counts."""
        slots = [f"{g}/slot/{rank}" for rank in range(world_size)]
        if has_all(self._store, slots):
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

    @contextlib.contextmanager
    def _telling_others_of_an_error(self, g: int) -> Iterator[None]:
        """End generation ``g`` for all its workers if this one fails or is interrupted."""
        try:
            yield
        except BaseException as error:
            self._give_up(
                g, f"{self._reader} gave up: {type(error).__name__}: {error}", "GroupError"
            )
            with contextlib.suppress(RuntimeError):  # the store may be what failed
                self._let_others_read(g)
            raise

    def _wait_for_answer(self, g: int, world_size: int, limit: float) -> bytes | None:
        return wait_for(
            self._store,
            f"{g}/group",
            limit,
            lambda: self._missing(g, world_size),
            reader=self._reader,
            waiting=world_size,
            # A worker killed while arriving may not have been counted.
            meanwhile=lambda: self._complete(g, world_size),
        )

    def _read_group(
        self, g: int, world_size: int, limit: float, value: bytes | None
    ) -> tuple[tuple[Member, ...], str] | None:
        """Return the members and the group's token, or None if the group formed without this worker.

        :param value: the answer for which this worker waited; None if it waited in vain.
        """
        key = f"{g}/group"
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
            answer = read_answer(key, whole_answer(self._store, key, value, world_size), world_size)
        except Exception:
            with contextlib.suppress(RuntimeError):  # the store may be what failed
                self._close(g)  # the worker that wrote the answer may have been killed
            self._let_others_read(g)
            raise
        nonces, members = checked(key, answer, partial(members_of, world_size))
        if nonces[self._rank] != self._nonce:
            self._close(g)
            if self._store.get(f"{g}/slot/{self._rank}") == json.dumps(self._who).encode():
                self._replace(g)  # the member with this rank is an earlier process
            return None
        token = hashlib.sha256(json.dumps(nonces).encode()).hexdigest()
        return tuple(Member(*fields) for fields in members), token

    def _replace(self, g: int) -> None:
        """Make the workers that still start in generation ``g`` join the next group instead.

        They may wait for a process that this worker replaces: one that arrived there and then ended,
        because a launcher has started its job again. A group that has completed its first exchange is
        not affected.
        """
        reason = (
            f"{self._reader} arrived after the group was complete and "
            "before all its members had started. The members join the next group."
        )
        settle(
            self._prefixed(g),
            exchange_result(1),
            {"error": reason, "kind": ReplacedGroupError.__name__},
        )

    def _give_up(self, g: int, reason: str, kind: str) -> None:
        try:
            settle(self._store, f"{g}/group", {"error": reason, "kind": kind})
            self._close(g)
        except RuntimeError:
            logger.debug("the store is gone, so no other worker can be told: %s", reason)

    def _let_others_read(self, g: int) -> None:
        """On rank 0, wait until all arrived workers have read why the group failed.

        Rank 0 hosts the TCP store and is about to raise, which closes the store.
        """
        try:
            read = added(self._store, f"{g}/read", 1)
        except RuntimeError:
            if self._rank == 0:
                raise
            return  # the host closed the store after our count, or before it
        end = time.monotonic() + _READING_TIMEOUT
        while self._rank == 0 and read < added(self._store, f"{g}/arrived", 0):
            if time.monotonic() > end:
                return
            time.sleep(_READING_PAUSE)
            read = added(self._store, f"{g}/read", 0)

    def _missing(self, g: int, world_size: int) -> str:
        ranks = missing_ranks(self._store, f"{g}/slot", world_size)
        kind = {0: "", 1: "rank "}.get(len(ranks), "ranks ")
        return kind + shortened(map(str, ranks))

    # --- dynamic -----------------------------------------------------------------------------------

    def join_dynamic(self, timeout: float) -> Group:
        while True:
            generation = added(self._store, "generation", 0)
            if generation and not self._over(generation - 1):
                self._refuse_mixing("dynamic", "static")
            if self._take_kind(generation, "dynamic"):
                break
        self._agree(generation)
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

    def _agree(self, g: int) -> None:
        """Compare this worker's terms with those of the first member of a dynamic group.

        :raises GroupError: one of the two lacks what the other demands.
        """
        key = f"{g}/terms"
        mine = {"who": f"{self._name!r} (rank {self._rank})", "terms": self._terms}
        agreed = self._store.compare_set(key, "", json.dumps(mine))
        first: Any = parsed(key, agreed)
        if first == mine:
            return
        who = checked(key, first, lambda value: str(value["who"]))
        theirs = checked(key, first, lambda value: read(value["terms"]))
        own = f"{mine['who']}, which joins,"
        problem = disagreement({own: read(self._terms), who: theirs})
        if problem is not None:
            raise GroupError(problem)

    def _claim_autograd_id(self, g: int) -> int:
        """Return a container id that is unused in this dynamic group; the rank if it is free."""
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
                raise unsuitable(key, f"the number {taken}, which would mean that no id is left")
            free: int = MAX_ID + 1 - taken
            if self._claim(g, free):
                return free
        raise unsuitable(key, "a number that something else changes")

    def _claim(self, g: int, autograd_id: int) -> bool:
        process = _process_nonce()
        taken = self._store.compare_set(f"{g}/autograd/{autograd_id}", "", process)
        return bool(taken == process.encode())

    # --- both --------------------------------------------------------------------------------------

    def _take_kind(self, g: int, wanted: str) -> bool:
        """Make generation ``g`` a group of the wanted kind; False if it has been closed meanwhile.

        :raises GroupError: the generation has another kind or another size.
        """
        kind = _kind(f"{g}/kind", self._store.compare_set(f"{g}/kind", "", wanted))
        if kind == wanted:
            return True
        if added(self._store, "generation", 0) != g:
            return False
        if kind == "dynamic" and added(self._store, f"{g}/present", 0) <= 0:
            self._close(g)  # all members have left that dynamic group
            return False
        if "dynamic" in (kind, wanted):
            self._refuse_mixing(wanted, kind)
        if wanted == f"static/{_size_from_torchrun()}":
            # All workers of this attempt have this size, so an earlier attempt wrote the other one.
            self._give_up(g, "torchrun has started the workers again", GroupError.__name__)
            return False
        reason = (
            f"workers disagree on world_size: {self._name!r} (rank {self._rank}) has "
            f"{wanted.partition('/')[2]}, but an earlier worker has {kind.partition('/')[2]}. "
            "Pass the same world_size to every worker."
        )
        added(
            self._store, f"{g}/arrived", 1
        )  # one more worker has read the reason; that group failed
        self._give_up(g, reason, GroupError.__name__)
        self._let_others_read(g)
        raise GroupError(reason)

    def _refuse_mixing(self, wanted: str, stored: str) -> None:
        wanted, stored = wanted.partition("/")[0], stored.partition("/")[0]
        raise GroupError(
            _MIXED.format(name=self._name, rank=self._rank, wanted=wanted, stored=stored)
        )

    def _over(self, g: int) -> bool:
        """Return whether the group of generation ``g`` is over: it failed, or all members left."""
        if not self._store.check([f"{g}/kind"]):
            raise unsuitable("generation", f"the number {g + 1}, but there is no group {g}")
        kind = _kind(f"{g}/kind", self._store.get(f"{g}/kind"))
        if kind == "dynamic" or not self._store.check([f"{g}/group"]):
            return True
        size = int(kind.partition("/")[2])
        key = f"{g}/group"
        try:
            read_answer(key, whole_answer(self._store, key, self._store.get(key), size), size)
        except StoreError:
            raise
        except Exception:  # the group failed
            return True
        return bool(added(self._store, f"{g}/left", 0) >= size)

    def _close(self, g: int) -> None:
        """Open the next generation for new arrivals; only the first call has an effect.

        One request does it. A worker that is killed before it leaves that to the next one.
        """
        self._store.compare_set("generation", str(g), str(g + 1))

    def _prefixed(self, g: int) -> Any:
        from torch.distributed import PrefixStore

        return PrefixStore(str(g), self._raw_store)


def _size_from_torchrun() -> str | None:
    """Return the number of workers that torchrun has started; None without torchrun."""
    return os.environ.get("WORLD_SIZE") if "TORCHELASTIC_RUN_ID" in os.environ else None


def _kind(key: str, stored: bytes) -> str:
    if not _KIND.fullmatch(stored):
        raise unsuitable(key, f"{shown(stored)}, not a kind of group")
    return stored.decode()


def _warn_of_shared_id(name: str, autograd_id: int) -> None:
    logger.warning(
        "RPC worker %r and another member were both worker %d in earlier groups, and torch keeps "
        "that id for the life of a process. Do not use distributed autograd in this group.",
        name,
        autograd_id,
    )


def _process_nonce() -> str:
    """Return a string unique to this process, different even in a forked child."""
    if STATE.nonce[0] != os.getpid():
        STATE.nonce = (os.getpid(), uuid.uuid4().hex)
    return STATE.nonce[1]
