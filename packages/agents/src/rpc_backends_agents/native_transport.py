"""A transport in C++ with the methods of one in Python, for tests of the transport."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from rpc_backends_agents._native_transport import NativeTransport
from rpc_backends_agents.transport import Inbox, Transport

#: Seconds that ``receive`` may take to return after ``close``.
_ENDING = 5.0


class InPython(Transport):
    """A transport in C++, driven from Python: one thread receives its events for the inbox.

    :param transport: an object with a method ``__rpc_transport__``. If it also has ``listen`` and the
        other methods of :class:`~rpc_backends_agents.addressing.Native`, they are used.
    """

    def __init__(self, transport: Any) -> None:
        self._native = NativeTransport(transport)
        self._around = transport if hasattr(transport, "listen") else None
        self._receiver: threading.Thread | None = None

    def listen(self, worker_id: int, name: str, inbox: Inbox) -> str:
        """Start to listen, and pass events to ``inbox`` until a method of ``inbox`` raises."""
        address = (self._around or self._native).listen(worker_id, name)
        receiver = threading.Thread(target=self._receive, args=(inbox,), daemon=True)
        receiver.start()
        self._receiver = receiver  # `close` waits for it
        return address

    def learn(self, peer: int, name: str, address: str) -> None:
        """Store a peer's address; its rank is its worker id."""
        if self._around is None:
            self._native.learn(peer, name, address)
        else:
            self._around.learn(peer, name, address, peer)

    def send(self, peer: int, parts: Sequence[memoryview], reply: bool) -> None:
        """Send a message; may be called on many threads."""
        self._native.send(peer, parts, reply)

    def forget(self, peer: int) -> None:
        """Drop the connections to a peer."""
        self._native.forget(peer)

    def reject(self, peer: int, reason: str) -> None:
        """Close the connections to a peer."""
        self._native.reject(peer, reason)

    def close(self, linger: float) -> None:
        """Close the transport.

        :raises RuntimeError: ``receive`` does not return false in time.
        """
        self._native.close(linger)
        if self._around is not None:
            self._around.close(0)
        if self._receiver is not None:
            self._receiver.join(_ENDING)
            if self._receiver.is_alive():
                raise RuntimeError(f"receive() still waits {_ENDING:g} s after close()")

    def metrics(self) -> dict[str, str]:
        """Return the metrics, with those of the Python code around the transport."""
        values = dict(self._native.metrics())
        return values if self._around is None else {**values, **self._around.metrics()}

    def _receive(self, inbox: Any) -> None:
        last = 0
        while (event := self._native.receive()) is not None:
            kind, peer, parts, reason, order = event
            if order not in (0, last + 1):
                inbox.disordered(last, order)
            last = order or last
            if kind == "message":
                inbox.deliver(peer, parts)
            elif kind == "found":
                inbox.found(peer)
            else:
                getattr(inbox, kind)(peer, reason)


def in_python(transport: Any) -> Transport:
    """Return ``transport`` with the methods of a transport in Python.

    :param transport: a :class:`Transport`, or an object with a method ``__rpc_transport__``.
    :raises TypeError: the transport in C++ was built for another version of the interface.
    """
    return InPython(transport) if hasattr(transport, "__rpc_transport__") else transport
