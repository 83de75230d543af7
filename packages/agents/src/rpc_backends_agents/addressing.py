"""Who says where a worker listens: a transport in Python or C++ by itself, or the Python around one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from rpc_backends_agents import _C


@runtime_checkable
class HasCapsule(Protocol):
    """What has a transport in C++, and nothing else to say."""

    def __rpc_transport__(self) -> object:
        """Return a capsule with a ``std::shared_ptr<rpc_backends::Transport>*``."""


@runtime_checkable
class Native(HasCapsule, Protocol):
    """What has a transport in C++ and does in Python what is not on the way of a message."""

    def listen(self, worker_id: int, name: str, /) -> str:
        """Begin to listen, and return the address for the others."""

    def learn(self, worker_id: int, name: str, address: str, rank: int, /) -> None:
        """Take note of a peer; raise if its address is not to be believed."""

    def metrics(self) -> dict[str, str]:
        """Return what is worth knowing about it, for the debug information."""

    def close(self, linger: float, /) -> None:
        """Stop; the agent has closed the transport in C++ before."""


@runtime_checkable
class Guarded(Native, Protocol):
    """A transport that lets in none but those whose address it has learned."""

    #: Called with a key that is not known; has the transport learn of those who are new.
    on_unknown_key: Callable[[bytes], object] | None


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
    def __init__(self, agent: _C.TransportAgent, transport: Native, name: str) -> None:
        super().__init__(agent)
        self._transport = transport
        self._name = name

    def listen(self, worker_id: int) -> str:
        return self._transport.listen(worker_id, self._name)

    def learn(self, worker_id: int, name: str, rank: int, address: str) -> None:
        self._transport.learn(worker_id, name, address, rank)

    def refresh_before_refusing(self, refresh: Callable[[], None]) -> None:
        if isinstance(self._transport, Guarded):
            self._transport.on_unknown_key = lambda _key: refresh()


def addressing(transport: object, agent: _C.TransportAgent, name: str) -> Addressing:
    """Return what listens and learns for ``agent``, which is worker ``name``'s."""
    if isinstance(transport, Native):
        return _InPython(agent, transport, name)
    return Addressing(agent)
