"""The member list of a dynamic group: kept in the store, changed by compare-and-set only."""

from __future__ import annotations

import ipaddress
import logging
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from torch.distributed.rpc import WorkerInfo

from rpc_backend_tensorpipe import broadcast
from rpc_backend_tensorpipe.agents import dumps
from rpc_backend_tensorpipe.liveness import is_alive
from rpc_backends_core.spi import (
    STORE_TIMEOUT,
    StoreAccess,
    device_maps,
    processes,
    stored,
    worker_info,
)

logger = logging.getLogger("rpc_backends.tensorpipe")

_KEY = "members"
_KEY_BYTES = 32
#: Bytes of the longest list that is parsed.
_LARGEST = 16 << 20
#: In torch, a worker id is a signed 16-bit integer.
_MAX_WORKER_ID = 32767


@dataclass(frozen=True)
class Peer:
    """A member of the group.

    :ivar worker_id: the id that agents use for this member; no id is given twice in a group.
    :ivar address: where its agent listens, in TensorPipe's notation.
    :ivar listener: host and port of its liveness listener; see :mod:`.liveness`.
    :ivar process: its process as ``processes.this_process`` returns it there; empty if unknown.
    """

    name: str
    rank: int
    worker_id: int
    devices: device_maps.WorkerDevices
    address: str = ""
    listener: tuple[str, int] = ("", 0)
    process: tuple[str | int, ...] = ()

    def process_has_ended(self) -> bool | None:
        """Return whether its process has ended; None if that cannot be seen from this host."""
        process = [*self.process]
        return processes.has_ended(process) if processes.is_local(process) else None

    def at(self, address: str, listener: tuple[str, int]) -> Peer:
        """Return a copy of this member with the addresses of its running agent."""
        return replace(self, address=address, listener=listener)

    def info(self) -> WorkerInfo:
        """Return the ``WorkerInfo`` that programs see: its id is the rank."""
        return worker_info(self.name, self.worker_id, self.rank)

    def engine_info(self) -> WorkerInfo:
        """Return the ``WorkerInfo`` that the C++ agent uses: its id is the worker id."""
        return WorkerInfo(self.name, self.worker_id)


@dataclass(frozen=True)
class State:
    """The members at one version of the list.

    :ivar used: every worker id that this group has ever given out.
    :ivar ended: those of former members whose process has ended without leaving.
    """

    version: int = 0
    peers: dict[str, Peer] = field(default_factory=dict)
    used: frozenset[int] = frozenset()
    ended: frozenset[int] = frozenset()

    def to_json(self) -> dict[str, Any]:
        """Return values that JSON can represent; :meth:`from_json` reads them."""
        return {
            "version": self.version,
            "used": sorted(self.used),
            "ended": sorted(self.ended),
            "peers": [
                [
                    peer.name,
                    peer.rank,
                    peer.worker_id,
                    peer.devices.to_json(),
                    peer.address,
                    list(peer.listener),
                    list(peer.process),
                ]
                for peer in self.peers.values()
            ],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> State:
        """Read what :meth:`to_json` returned.

        :raises Exception: ``value`` is not in that form; the type depends on what is wrong.
        """
        peers = [_peer(*fields) for fields in value["peers"]]
        used, ended = frozenset(value["used"]), frozenset(value.get("ended", ()))
        if type(value["version"]) is not int or not all(map(stored.is_id, used | ended)):
            raise ValueError("its version or one of its ids is not a number")
        if len({peer.worker_id for peer in peers}) < len(peers):
            raise ValueError("two of its workers have the same id")
        return cls(value["version"], {peer.name: peer for peer in peers}, used, ended)

    def with_peers(self, peers: Iterable[Peer], ended: Iterable[int] = ()) -> State:
        """Return a copy of this state with exactly ``peers`` as members.

        :param ended: the worker ids of former members whose process has ended without leaving.
        """
        return replace(
            self, peers={peer.name: peer for peer in peers}, ended=self.ended.union(ended)
        )


def _peer(
    name: Any, rank: Any, worker_id: Any, of: Any, address: Any, listener: Any, process: Any
) -> Peer:
    WorkerInfo(name, worker_id)  # raises if torch does not allow the name
    host, port = listener
    if not (stored.is_id(rank) and stored.is_id(worker_id) and isinstance(address, str)):
        raise ValueError(f"the rank, id or address of its worker {name!r} is not valid")
    if not (isinstance(host, str) and type(port) is int and 0 <= port < 1 << 16):
        raise ValueError(f"the listener of its worker {name!r} is not a host and a port")
    ipaddress.ip_address(host)  # TensorPipe writes IP addresses; each name would cost a lookup
    if not (isinstance(process, list) and all(type(part) in (str, int) for part in process)):
        raise ValueError(f"the process of its worker {name!r} is not a list of texts and numbers")
    devices = device_maps.WorkerDevices.from_json(of)
    return Peer(name, rank, worker_id, devices, address, (host, port), tuple(process))


class Membership:
    """Reads and changes the member list of one group.

    :param access: access to the group's store.
    :param timeout: seconds that a store request may take while this worker joins.
    :ivar key: the group's secret key, which authenticates broadcasts. The first member creates it;
        empty until this worker has read the list.
    """

    def __init__(self, access: StoreAccess, timeout: float) -> None:
        self._access = access
        self._timeout = timeout
        self.key = b""

    def reserve(
        self, name: str, rank: int, mine: device_maps.WorkerDevices, wanted: int | None
    ) -> int:
        """Check that a worker can join, and reserve a worker id that was never used in this group.

        :param wanted: the preferred id: torch fixed it for this process in an earlier group.
        :raises RuntimeError: another member that is alive has the name or the rank.
        :raises ValueError: the device maps are inconsistent.
        """
        chosen = rank

        def change(state: State) -> State:
            nonlocal chosen
            others = self._others(state, name, rank)
            device_maps.check([mine, *(peer.devices for peer in others)], complete=False)
            candidates = (rank if wanted is None else wanted, rank)
            spare = range(_MAX_WORKER_ID, -1, -1)
            chosen = next(
                (
                    worker_id
                    for ids in (candidates, spare)
                    for worker_id in ids
                    if worker_id not in state.used and worker_id <= _MAX_WORKER_ID
                ),
                -1,
            )
            if chosen < 0:
                raise stored.unsuitable(
                    _KEY, f"a list that has used all {_MAX_WORKER_ID + 1} worker ids of a group"
                )
            return replace(state, used=state.used | {chosen})

        self._change(change)
        return chosen

    def add(self, me: Peer) -> State:
        """Add ``me`` to the list; it replaces any dead member with the same name or rank.

        :raises RuntimeError, ValueError: as for :meth:`reserve`.
        """

        def change(state: State) -> State:
            others = self._others(state, me.name, me.rank)
            device_maps.check([me.devices, *(peer.devices for peer in others)], complete=False)
            kept = {peer.worker_id for peer in others}
            ended = (peer.worker_id for peer in state.peers.values())
            return state.with_peers([*others, me], ended=set(ended) - kept - {me.worker_id})

        return self._change(change)

    def remove(self, gone: Iterable[Peer], *, ended: bool = False) -> State:
        """Remove members from the list; members that are not on it are ignored.

        :param ended: whether their processes have ended, and they did not leave.
        :raises StoreError: the store is lost, does not respond, or holds something other than a list.
        """
        ids = {peer.worker_id for peer in gone}

        def change(state: State) -> State:
            kept = [peer for peer in state.peers.values() if peer.worker_id not in ids]
            if len(kept) == len(state.peers):
                return state
            return state.with_peers(kept, ended=ids if ended else ())

        return self._change(change, STORE_TIMEOUT)

    def _change(self, change: Callable[[State], State], seconds: float = 0) -> State:
        """Replace the list with the result of ``change``; lost compare-and-set races are retried."""
        seconds = seconds or self._timeout
        empty = {**State().to_json(), "key": secrets.token_hex(_KEY_BYTES)}
        text = self._replace("", dumps(empty), seconds)
        while True:
            key, before = stored.parsed(_KEY, text, _list, _LARGEST)
            self.key = bytes.fromhex(key)
            after = change(before)
            if after == before:
                return before
            after = replace(after, version=before.version + 1)
            wanted = dumps({**after.to_json(), "key": key, "by": _nonce()})
            now = self._replace(text.decode(), wanted, seconds)
            if now == wanted.encode():
                return after
            text = now

    def is_alive(self, peer: Peer) -> bool:
        """Return False if a member is certainly gone, True otherwise; see :mod:`.liveness`."""
        return not peer.process_has_ended() and is_alive(
            peer.listener, broadcast.question(peer.worker_id, self.key)
        )

    def _others(self, state: State, name: str, rank: int) -> list[Peer]:
        """Return the members that have neither this name nor this rank.

        :raises RuntimeError: a member that is alive has the name or the rank.
        """
        others = []
        for peer in state.peers.values():
            if name != peer.name and rank != peer.rank:
                others.append(peer)
            elif self.is_alive(peer):
                what = f"name {name}" if name == peer.name else f"rank {rank}"
                raise RuntimeError(
                    f"RPC worker {what} is not unique: the member {peer.name!r} (rank {peer.rank}, "
                    f"{peer.address}) has it. Let that worker leave first, or choose another name "
                    "or rank."
                )
        return others

    def _replace(self, before: str, after: str, seconds: float) -> bytes:
        return self._access.ask(
            lambda store: bytes(store.compare_set(_KEY, before, after)), seconds
        )


def _list(value: Any) -> tuple[str, State]:
    """Parse the stored list: return the group's key and its members."""
    if len(bytes.fromhex(value["key"])) != _KEY_BYTES:
        raise ValueError(f"its key does not have {_KEY_BYTES} bytes")
    return value["key"], State.from_json(value)


def _nonce() -> str:
    import uuid

    return uuid.uuid4().hex
