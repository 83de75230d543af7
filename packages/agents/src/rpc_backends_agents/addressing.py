"""How an agent listens and learns addresses: through its transport, or through Python code around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from rpc_backends_agents import _C


@runtime_checkable
class HasCapsule(Protocol):
    """An object that provides a C++ transport and nothing else."""

    def __rpc_transport__(self) -> object:
        """Return a capsule with a ``std::shared_ptr<rpc_backends::Transport>*``."""


@runtime_checkable
class Native(HasCapsule, Protocol):
    """A C++ transport with Python code for everything that does not move messages."""

    def listen(self, worker_id: int, name: str, /) -> str:
        """Start to listen; return the address for the peers."""

    def learn(self, worker_id: int, name: str, address: str, rank: int, /) -> None:
        """Store a peer's address; raise an exception if the address is not valid."""

    def metrics(self) -> dict[str, str]:
        """Return values for the agent's debug information."""

    def close(self, linger: float, /) -> None:
        """Stop; the agent has already closed the C++ transport."""


@runtime_checkable
class Guarded(Native, Protocol):
    """A transport that rejects workers whose address it has not learned."""

    #: Called with the key of an unknown worker; makes the transport learn new members.
    on_unknown_key: Callable[[bytes], object] | None


class Addressing:
    """Listens and learns addresses through the agent's transport."""

    def __init__(self, agent: _C.TransportAgent) -> None:
        self._agent: Any = agent

    def listen(self, worker_id: int) -> str:  # the agent passes the id to its transport
        """Start to listen; return this worker's address."""
        address: str = self._agent.listen()
        self._agent.published = address
        return address

    def learn(self, worker_id: int, name: str, rank: int, address: str) -> None:
        """Store a peer's address."""
        self._agent.learn(worker_id, name, address)

    def refresh_before_refusing(self, refresh: Callable[[], None]) -> None:
        """Call ``refresh`` before an unknown worker is rejected, if the transport rejects any."""


class _InPython(Addressing):
    def __init__(self, agent: _C.TransportAgent, transport: Native, name: str) -> None:
        super().__init__(agent)
        self._transport = transport
        self._name = name

    def listen(self, worker_id: int) -> str:
        address = self._transport.listen(worker_id, self._name)
        if not isinstance(address, str):
            kind = type(self._transport)
            raise TypeError(
                f"{kind.__module__}.{kind.__qualname__}.listen() of the transport returned {address!r}; "
                "it must return this worker's address as a str."
            )
        return address

    def learn(self, worker_id: int, name: str, rank: int, address: str) -> None:
        self._transport.learn(worker_id, name, address, rank)

    def refresh_before_refusing(self, refresh: Callable[[], None]) -> None:
        if isinstance(self._transport, Guarded):
            self._transport.on_unknown_key = lambda _key: refresh()


def addressing(transport: object, agent: _C.TransportAgent, name: str) -> Addressing:
    """Return the addressing of ``agent``, the agent of worker ``name``."""
    if isinstance(transport, Native):
        return _InPython(agent, transport, name)
    return Addressing(agent)
