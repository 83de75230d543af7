"""The list of members of a dynamic group, in the store, changed by compare-and-set alone."""

from __future__ import annotations

import json
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
from rpc_backends_core.spi import worker_info

logger = logging.getLogger("rpc_backends.tensorpipe")

_KEY = "members"
_KEY_BYTES = 32
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
        """Return what :meth:`to_json` wrote."""
        peers = [
            Peer(name, rank, worker_id, WorkerDevices.from_json(of), address, tuple(listener))
            for name, rank, worker_id, of, address, listener in value["peers"]
        ]
        return cls(value["version"], {peer.name: peer for peer in peers}, frozenset(value["used"]))

    def with_peers(self, peers: Iterable[Peer]) -> State:
        """Return the state with exactly these members."""
        return replace(self, peers={peer.name: peer for peer in peers})


class Membership:
    """The list of members of one group.

    :param store: the group's own.
    :ivar key: what members know each other by, once the list was read; made by the first of them.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
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
                one
                for ids in (candidates, spare)
                for one in ids
                if one not in state.used and one <= _MAX_WORKER_ID
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
        """Take members off the list; those who are not on it do no harm."""
        ids = {peer.worker_id for peer in gone}
        return self._change(
            lambda state: state.with_peers(
                peer for peer in state.peers.values() if peer.worker_id not in ids
            )
        )

    def _change(self, change: Callable[[State], State]) -> State:
        """Replace the list by what ``change`` makes of it, again if somebody else was faster."""
        empty = {**State().to_json(), "key": secrets.token_hex(_KEY_BYTES)}
        text = self._store.compare_set(_KEY, "", dumps(empty)).decode()
        while True:
            found = json.loads(text)
            self.key = bytes.fromhex(found["key"])
            before = State.from_json(found)
            after = change(before)
            if after == before:
                return before
            after = replace(after, version=before.version + 1)
            wanted = dumps({**after.to_json(), "key": found["key"], "by": _nonce()})
            now = self._store.compare_set(_KEY, text, wanted).decode()
            if now == wanted:
                return after
            text = now


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
