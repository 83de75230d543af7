"""The list of members of a dynamic group, in the store, changed by compare-and-set alone."""

from __future__ import annotations

import ipaddress
import logging
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from torch.distributed.rpc import WorkerInfo

from rpc_backend_tensorpipe import devices
from rpc_backend_tensorpipe.agents import dumps
from rpc_backend_tensorpipe.devices import WorkerDevices
from rpc_backend_tensorpipe.liveness import is_alive
from rpc_backends_core.spi import STORE_PATIENCE, StoreAccess, stored, worker_info

logger = logging.getLogger("rpc_backends.tensorpipe")

_KEY = "members"
_KEY_BYTES = 32
#: Bytes of the longest list that is looked at.
_LARGEST = 16 << 20
#: Worker ids are 16 bits, signed, in torch.
_MAX_WORKER_ID = 32767


@dataclass(frozen=True)
class Peer:
    """A member of the group.

    :ivar worker_id: what agents know it by; never given to a second worker of the group.
    :ivar address: where its agent listens, as TensorPipe writes it.
    :ivar listener: host and port by which to tell whether it lives; see :mod:`.liveness`.
    """

    name: str
    rank: int
    worker_id: int
    devices: WorkerDevices
    address: str = ""
    listener: tuple[str, int] = ("", 0)

    def at(self, address: str, listener: tuple[str, int]) -> Peer:
        """Return this member with the addresses it has once its agent runs."""
        return replace(self, address=address, listener=listener)

    def info(self) -> WorkerInfo:
        """Return what programs see of it."""
        return worker_info(self.name, self.worker_id, self.rank)

    def engine_info(self) -> WorkerInfo:
        """Return what the agent in C++ knows it by."""
        return WorkerInfo(self.name, self.worker_id)


@dataclass(frozen=True)
class State:
    """The members at one version of the list.

    :ivar used: every worker id that was ever given in this group.
    """

    version: int = 0
    peers: dict[str, Peer] = field(default_factory=dict)
    used: frozenset[int] = frozenset()

    def to_json(self) -> dict[str, Any]:
        """Return it in a form that JSON can carry; see :meth:`from_json`."""
        return {
            "version": self.version,
            "used": sorted(self.used),
            "peers": [
                [
                    peer.name,
                    peer.rank,
                    peer.worker_id,
                    peer.devices.to_json(),
                    peer.address,
                    list(peer.listener),
                ]
                for peer in self.peers.values()
            ],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> State:
        """Return what :meth:`to_json` wrote.

        :raises ValueError: it did not write that; errors of other types where that shows later.
        """
        peers = [_peer(*fields) for fields in value["peers"]]
        used = frozenset(value["used"])
        if type(value["version"]) is not int or not all(map(stored.is_id, used)):
            raise ValueError("its version or its ids are no numbers")
        if len({peer.worker_id for peer in peers}) < len(peers):
            raise ValueError("two of its workers have one id")
        return cls(value["version"], {peer.name: peer for peer in peers}, used)

    def with_peers(self, peers: Iterable[Peer]) -> State:
        """Return the state with exactly these members."""
        return replace(self, peers={peer.name: peer for peer in peers})


def _peer(name: Any, rank: Any, worker_id: Any, of: Any, address: Any, listener: Any) -> Peer:
    WorkerInfo(name, worker_id)  # raises where torch does not allow the name
    host, port = listener
    if not (stored.is_id(rank) and stored.is_id(worker_id) and isinstance(address, str)):
        raise ValueError(f"its worker {name!r} has no rank, id or address")
    if not (isinstance(host, str) and type(port) is int and 0 <= port < 1 << 16):
        raise ValueError(f"its worker {name!r} has no listener")
    ipaddress.ip_address(host)  # as TensorPipe writes it; a name would be looked up each time
    return Peer(name, rank, worker_id, WorkerDevices.from_json(of), address, (host, port))


class Membership:
    """The list of members of one group.

    :param access: to the group's store.
    :param timeout: seconds that a request may take while this worker joins.
    :ivar key: what members know each other by, once the list was read; made by the first of them.
    """

    def __init__(self, access: StoreAccess, timeout: float) -> None:
        self._access = access
        self._timeout = timeout
        self.key = b""

    def reserve(self, name: str, rank: int, mine: WorkerDevices, wanted: int | None) -> int:
        """Check that a worker can join, and give it an id that nobody has had.

        :param wanted: the id that torch has fixed for this process in an earlier group.
        :raises RuntimeError: the name or the rank is another member's that is alive.
        :raises ValueError: device maps do not fit.
        """
        chosen = rank

        def change(state: State) -> State:
            nonlocal chosen
            others = _others(state, name, rank)
            devices.check([mine, *(peer.devices for peer in others)], complete=False)
            candidates = (rank if wanted is None else wanted, rank)
            spare = range(_MAX_WORKER_ID, -1, -1)
            chosen = next(
                (
                    one
                    for ids in (candidates, spare)
                    for one in ids
                    if one not in state.used and one <= _MAX_WORKER_ID
                ),
                -1,
            )
            if chosen < 0:
                raise stored.unsuitable(
                    _KEY, f"every worker id; a group gives {_MAX_WORKER_ID + 1} in all its life"
                )
            return replace(state, used=state.used | {chosen})

        self._change(change)
        return chosen

    def add(self, me: Peer) -> State:
        """Put ``me`` on the list, in the place of a member of that name or rank that is gone.

        :raises RuntimeError, ValueError: as for :meth:`reserve`.
        """

        def change(state: State) -> State:
            others = _others(state, me.name, me.rank)
            devices.check([me.devices, *(peer.devices for peer in others)], complete=False)
            return state.with_peers([*others, me])

        return self._change(change)

    def remove(self, gone: Iterable[Peer]) -> State:
        """Take members off the list; those who are not on it do no harm.

        :raises StoreError: the store is lost, does not answer, or holds another thing.
        """
        ids = {peer.worker_id for peer in gone}
        return self._change(
            lambda state: state.with_peers(
                peer for peer in state.peers.values() if peer.worker_id not in ids
            ),
            STORE_PATIENCE,
        )

    def _change(self, change: Callable[[State], State], seconds: float = 0) -> State:
        """Replace the list by what ``change`` makes of it, again if somebody else was faster."""
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

    def _replace(self, before: str, after: str, seconds: float) -> bytes:
        return self._access.ask(
            lambda store: bytes(store.compare_set(_KEY, before, after)), seconds
        )


def _list(value: Any) -> tuple[str, State]:
    """Return the key and the members."""
    if len(bytes.fromhex(value["key"])) != _KEY_BYTES:
        raise ValueError("its key is none")
    return value["key"], State.from_json(value)


def _others(state: State, name: str, rank: int) -> list[Peer]:
    """Return the members beside a worker of this name and rank.

    :raises RuntimeError: one of them has the name or the rank, and is alive.
    """
    others = []
    for peer in state.peers.values():
        if name != peer.name and rank != peer.rank:
            others.append(peer)
        elif is_alive(peer.listener):
            what = f"name {name}" if name == peer.name else f"rank {rank}"
            raise RuntimeError(
                f"RPC worker {what} is not unique: the member {peer.name!r} (rank {peer.rank}, "
                f"{peer.address}) has it. Let that worker leave first, or choose another."
            )
    return others


def _nonce() -> str:
    import uuid

    return uuid.uuid4().hex
