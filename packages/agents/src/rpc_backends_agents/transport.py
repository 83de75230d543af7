"""What moves messages between the workers of a group: the interface for transports written in Python.

``include/rpc_backends_agents/transport.h`` is the same in C++.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Protocol

from typing_extensions import Buffer


class Inbox(Protocol):
    """Where a transport puts what has happened on its connections; from any thread."""

    def deliver(self, peer: int, parts: Iterable[Buffer]) -> None:
        """Hand over a message from ``peer``: its parts, as they were sent.

        The parts become the memory of tensors, without a copy where they begin at a multiple of 16
        bytes; nobody may write to them afterwards.
        """

    def lost(self, peer: int, reason: str) -> None:
        """Say that the connection to ``peer`` is gone, and with it any message that was on its way.

        All calls that wait for ``peer`` fail with ``reason``, and later ones do until :meth:`found`.
        """

    def found(self, peer: int) -> None:
        """Say that there is a connection to a lost peer again."""


class Transport(ABC):
    """Moves messages of several parts between workers, which it knows by their worker ids.

    :class:`~rpc_backends_agents.TransportAgent` calls it in this order: :meth:`listen`; :meth:`learn` for
    each peer; :meth:`send`; :meth:`forget` for a peer that has left; :meth:`close`.
    """

    @abstractmethod
    def listen(self, worker_id: int, name: str, inbox: Inbox) -> str:
        """Begin to listen, and return the address by which peers :meth:`learn` of this worker.

        :param inbox: where to put what arrives; it takes messages before anybody asks for them.
        """

    @abstractmethod
    def learn(self, peer: int, name: str, address: str) -> None:
        """Take note of a peer. Nothing needs to be connected until the first message.

        :raises Exception: the address cannot be believed; the start of this worker fails with it.
        """

    @abstractmethod
    def send(self, peer: int, parts: Sequence[memoryview], reply: bool) -> None:
        """Send a message: one at a time to each peer, on a thread of that peer.

        Messages to one peer arrive once each and in order, or the peer is reported as lost. A call that
        does not return holds up what goes to that peer, until :meth:`close` ends it.

        :param parts: valid for as long as there is a reference to them.
        :param reply: it answers a message from ``peer``, and goes back on the connection by which that
            came, where a transport has more than one.
        :raises Exception: it cannot be sent. The calls that wait for ``peer`` fail with its text; an
            answer is replaced by that error, and if this cannot be sent either, :meth:`reject` is called.
        """

    @abstractmethod
    def forget(self, peer: int) -> None:
        """Drop the connections with a peer that has left; one that is not known does no harm."""

    @abstractmethod
    def close(self, linger: float) -> None:
        """Stop listening and end all connections; a second call does nothing.

        :param linger: seconds that what was sent has to leave.
        """

    def reject(self, peer: int, reason: str) -> None:  # for those who log it
        """End the connections with a peer that has sent what is no message, or cannot be answered."""
        self.forget(peer)

    def metrics(self) -> dict[str, str]:
        """Return what is worth knowing about it; the agent's metrics show it as ``transport.KEY``."""
        return {}
