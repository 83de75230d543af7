"""Who says where a worker listens: a transport in Python or C++ by itself, or the Python around one."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from rpc_backends_agents import _C
from rpc_backends_core.group import Group


@runtime_checkable
class HasCapsule(Protocol):
    """What has a transport in C++, and nothing else to say."""

    def __rpc_transport__(self) -> object:
        """Return a capsule with a ``std::shared_ptr<rpc_backends::Transport>*``."""


@runtime_checkable
class Native(HasCapsule, Protocol):
    """What has a transport in C++ and does in Python what is not on the way of a message."""

    def listen(self, worker_id: int, name: str, rank: int, group: str, /) -> str:
        """Begin to listen, and return the address for the others; ``group`` is this group's alone."""

    def learn(self, worker_id: int, name: str, rank: int, address: str, /) -> None:
        """Take note of a peer; raise if its address is not to be believed."""

    def close(self, linger: float, /) -> None:
        """Stop; the agent has closed the transport in C++ before."""


@runtime_checkable
class Guarded(Native, Protocol):
    """A transport that lets in none but those whose address it has learned."""

    #: Asked for the worker whose key it is, where the transport does not know it.
    on_unknown_key: Callable[[bytes], int | None] | None

    def worker_of(self, key: bytes, /) -> int | None:
        """Return the worker that has this key, by what was learned."""


class Addressing:
    """Listening and learning for an agent whose transport does both by itself."""

    def __init__(self, agent: _C.TransportAgent) -> None:
        self._agent = agent

    def listen(self, worker_id: int) -> str:  # the agent has told it
        """Begin to listen, and return this worker's address."""
        return self._agent.listen()

    def learn(self, worker_id: int, name: str, rank: int, address: str) -> None:
        """Take note of a peer."""
        self._agent.learn(worker_id, name, address)

    def refresh_before_refusing(self, refresh: Callable[[], None]) -> None:
        """Look at the members once more before somebody who is not known is refused, if anybody is."""


class _InPython(Addressing):
    def __init__(self, agent: _C.TransportAgent, transport: Native, group: Group) -> None:
        super().__init__(agent)
        self._transport = transport
        self._group = group

    def listen(self, worker_id: int) -> str:
        nonce = self._group.store.compare_set("nonce", "", uuid.uuid4().hex).decode()
        return self._transport.listen(worker_id, self._group.name, self._group.rank, nonce)

    def learn(self, worker_id: int, name: str, rank: int, address: str) -> None:
        self._transport.learn(worker_id, name, rank, address)

    def refresh_before_refusing(self, refresh: Callable[[], None]) -> None:
        guarded = self._transport
        if not isinstance(guarded, Guarded):
            return

        def ask(key: bytes) -> int | None:
            refresh()
            return guarded.worker_of(key)

        guarded.on_unknown_key = ask


def addressing(transport: object, agent: _C.TransportAgent, group: Group) -> Addressing:
    """Return what listens and learns for ``agent``."""
    if isinstance(transport, Native):
        return _InPython(agent, transport, group)
    return Addressing(agent)
