"""The interface of transports in Python; a transport moves messages between the workers of a group.

``include/rpc_backends_agents/transport.h`` is the same interface in C++.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Protocol

from typing_extensions import Buffer


class Inbox(Protocol):
    """Receives the events of a transport's connections; its methods may be called on any thread."""

    def deliver(self, peer: int, parts: Iterable[Buffer]) -> None:
        """Deliver a message from ``peer``: its parts, exactly as they were sent.

        The parts become the memory of tensors, without a copy if they start at a multiple of 16 bytes.
        The transport must not write to them afterwards.
        """

    def lost(self, peer: int, reason: str) -> None:
        """Report that the connection to ``peer`` is lost, with all messages on their way.

        All calls that wait for ``peer`` fail with ``reason``. New calls to it fail at once, until
        :meth:`found`.
        """

    def found(self, peer: int) -> None:
        """Report that calls to a lost peer may be tried again."""


class Transport(ABC):
    """Moves messages between workers; a message has several parts, and a worker is known by its id.

    :class:`~rpc_backends_agents.TransportAgent` calls the methods in this order: :meth:`listen`;
    :meth:`learn` for each peer; :meth:`send`; :meth:`forget` for a peer that has left; :meth:`close`.
    """

    @abstractmethod
    def listen(self, worker_id: int, name: str, inbox: Inbox) -> str:
        """Start to listen; return the address that peers pass to :meth:`learn` to reach this worker.

        :param inbox: receives messages and events, from now on.
        """

    @abstractmethod
    def learn(self, peer: int, name: str, address: str) -> None:
        """Store a peer's address. The transport need not connect before the first message.

        :raises Exception: the address is not valid; the start of this worker fails with this error.
        """

    @abstractmethod
    def send(self, peer: int, parts: Sequence[memoryview], reply: bool) -> None:
        """Send a message. Each peer has its own thread, which sends one message at a time.

        Each message must arrive exactly once and in order, or the peer must be reported as lost. A call
        that does not return blocks later messages to that peer, until :meth:`close` ends the call.

        :param parts: valid as long as a reference to them exists.
        :param reply: the message answers a message from ``peer``. A transport with several connections to
            ``peer`` must send it on the connection on which that message arrived.
        :raises Exception: the message cannot be sent. If it is a request, the calls that wait for
            ``peer`` fail with the text of the exception. If it is a reply, the agent
            sends the error instead; if that fails, too, it calls :meth:`reject`.
        """

    @abstractmethod
    def forget(self, peer: int) -> None:
        """Drop the connections to a peer that has left the group; an unknown peer is ignored."""

    @abstractmethod
    def close(self, linger: float) -> None:
        """Stop listening and close all connections; a second call does nothing.

        :param linger: seconds to wait until messages that are already queued have left.
        """

    def reject(self, peer: int, reason: str) -> None:  # a subclass may log the reason
        """Close the connections to a peer that sent an invalid message or cannot be answered."""
        self.forget(peer)

    def metrics(self) -> dict[str, str]:
        """Return metrics of the transport; the agent's metrics contain them as ``transport.KEY``."""
        return {}
