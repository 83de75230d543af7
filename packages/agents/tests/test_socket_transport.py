"""The transport that the guide teaches: what it does beyond carrying calls, which the suite looks at."""

from __future__ import annotations

import json
import queue
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from rpc_backends_agents.transports import sockets
from rpc_backends_agents.transports.sockets import SocketTransport

PATIENCE = 30.0


class Received:
    """An inbox that keeps what comes."""

    def __init__(self) -> None:
        self.messages: queue.Queue[tuple[int, list[bytes]]] = queue.Queue()

    def deliver(self, peer: int, parts: list[Any]) -> None:
        self.messages.put((peer, [bytes(part) for part in parts]))

    def lost(self, peer: int, reason: str) -> None:
        """Hear of it."""

    def found(self, peer: int) -> None:
        """Hear of it."""


@pytest.fixture
def pair() -> Iterator[tuple[SocketTransport, Received, str]]:
    """Return a transport that calls, and the inbox and the address of another, worker 1."""
    caller, callee, inbox = SocketTransport(), SocketTransport(), Received()
    caller.listen(0, "worker0", Received())  # type: ignore[arg-type]
    address = callee.listen(1, "worker1", inbox)  # type: ignore[arg-type]
    caller.learn(1, "worker1", address)
    yield caller, inbox, address
    caller.close(PATIENCE)
    callee.close(PATIENCE)


def _connect(address: str) -> socket.socket:
    return socket.create_connection(tuple(json.loads(address)))


def test_who_connects_and_leaves_without_a_word_keeps_nobody_out(pair: Any) -> None:
    caller, inbox, address = pair

    _connect(address).close()
    caller.send(1, [memoryview(b"call")], reply=False)

    assert inbox.messages.get(timeout=PATIENCE) == (0, [b"call"])


def test_who_connects_and_says_nothing_keeps_others_out_for_a_moment_only(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "GREETING_SECONDS", 0.1)
    caller, inbox, address = pair

    with _connect(address) as silent:
        caller.send(1, [memoryview(b"call")], reply=False)

        assert inbox.messages.get(timeout=PATIENCE) == (0, [b"call"])
        silent.settimeout(PATIENCE)
        assert silent.recv(1) == b""  # it was hung up on


def test_a_transport_that_has_not_listened_can_be_closed() -> None:
    SocketTransport().close(PATIENCE)


def test_a_transport_can_be_closed_twice() -> None:
    transport = SocketTransport()
    transport.listen(0, "worker0", Received())  # type: ignore[arg-type]

    transport.close(PATIENCE)
    transport.close(PATIENCE)


def test_forgetting_a_peer_ends_its_connections_and_an_unknown_one_does_no_harm(pair: Any) -> None:
    caller, inbox, _ = pair
    caller.send(1, [memoryview(b"call")], reply=False)
    inbox.messages.get(timeout=PATIENCE)

    caller.forget(1)
    caller.forget(2)

    for _, reader in list(caller._links.values()):
        reader.join(PATIENCE)
    assert not caller._links
