"""The transport of the guide. Calls over it are tested by the conformance suite."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rpc_backends_agents.transports import sockets
from rpc_backends_agents.transports.sockets import SocketTransport

TIME_LIMIT = 30.0


class Received:
    """An inbox that keeps messages and losses."""

    def __init__(self) -> None:
        self.messages: queue.Queue[tuple[int, list[bytes]]] = queue.Queue()
        self.losses: queue.Queue[tuple[int, str]] = queue.Queue()

    def deliver(self, peer: int, parts: list[Any]) -> None:
        self.messages.put((peer, [bytes(part) for part in parts]))

    def lost(self, peer: int, reason: str) -> None:
        self.losses.put((peer, reason))

    def found(self, peer: int) -> None:
        """Do nothing."""


@pytest.fixture
def pair() -> Iterator[tuple[SocketTransport, Received, str]]:
    """Return a calling transport, and the inbox and address of another transport, worker 1."""
    caller, callee, inbox = SocketTransport(), SocketTransport(), Received()
    caller.listen(0, "worker0", Received())  # type: ignore[arg-type]
    address = callee.listen(1, "worker1", inbox)  # type: ignore[arg-type]
    caller.learn(1, "worker1", address)
    yield caller, inbox, address
    caller.close(TIME_LIMIT)
    callee.close(TIME_LIMIT)


def _connect(address: str) -> socket.socket:
    return socket.create_connection(tuple(json.loads(address)))


def test_a_connection_without_a_greeting_blocks_no_other(pair: Any) -> None:
    caller, inbox, address = pair

    _connect(address).close()
    caller.send(1, [memoryview(b"call")], reply=False)

    assert inbox.messages.get(timeout=TIME_LIMIT) == (0, [b"call"])


def test_a_silent_connection_is_closed(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "GREETING_SECONDS", 0.1)
    caller, inbox, address = pair

    with _connect(address) as silent:
        caller.send(1, [memoryview(b"call")], reply=False)

        assert inbox.messages.get(timeout=TIME_LIMIT) == (0, [b"call"])
        silent.settimeout(TIME_LIMIT)
        assert silent.recv(1) == b""  # the connection was closed


def test_a_transport_that_has_not_listened_can_be_closed() -> None:
    SocketTransport().close(TIME_LIMIT)


def test_a_transport_can_be_closed_twice() -> None:
    transport = SocketTransport()
    transport.listen(0, "worker0", Received())  # type: ignore[arg-type]

    transport.close(TIME_LIMIT)
    transport.close(TIME_LIMIT)


def test_a_connection_that_opens_during_close_is_closed(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, _, _ = pair
    opened = _note_connections(monkeypatch, then=lambda: caller.close(0))

    with pytest.raises(ConnectionError, match="the transport is closed"):
        caller.send(1, [memoryview(b"call")], reply=False)

    assert opened[0].fileno() == -1


def test_a_connection_that_no_thread_can_read_is_closed(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    caller, _, _ = pair
    opened = _note_connections(monkeypatch)
    monkeypatch.setattr(sockets, "Thread", NoThread)

    with pytest.raises(RuntimeError, match="can't start new thread"):
        caller.send(1, [memoryview(b"call")], reply=False)
    caller.close(TIME_LIMIT)

    assert opened[0].fileno() == -1


def _note_connections(
    monkeypatch: pytest.MonkeyPatch, then: Callable[[], None] = lambda: None
) -> list[socket.socket]:
    """Return a list of the connections that open from now on; ``then`` is called after each."""
    connect, opened = socket.create_connection, []

    def noting(address: Any) -> socket.socket:
        opened.append(connect(address))
        then()
        return opened[-1]

    monkeypatch.setattr(socket, "create_connection", noting)
    return opened


def test_forgetting_a_peer_closes_its_connections(pair: Any) -> None:
    caller, inbox, _ = pair
    caller.send(1, [memoryview(b"call")], reply=False)
    inbox.messages.get(timeout=TIME_LIMIT)

    caller.forget(1)
    caller.forget(2)

    for _, reader in list(caller._links.values()):
        reader.join(TIME_LIMIT)
    assert not caller._links


def test_a_transport_accepts_despite_a_default_timeout_of_sockets() -> None:
    socket.setdefaulttimeout(0.01)
    try:
        caller, callee, inbox = SocketTransport(), SocketTransport(), Received()
        caller.listen(0, "worker0", Received())  # type: ignore[arg-type]
        address = callee.listen(1, "worker1", inbox)  # type: ignore[arg-type]
        caller.learn(1, "worker1", address)
        callee._acceptor.join(0.3)  # it ends if accept() times out
        caller.send(1, [memoryview(b"call")], reply=False)

        assert inbox.messages.get(timeout=5) == (0, [b"call"])
    finally:
        socket.setdefaulttimeout(None)
    caller.close(TIME_LIMIT)
    callee.close(TIME_LIMIT)


def test_a_signal_during_a_message_is_harmless() -> None:
    here, there = socket.socketpair()
    main, piece, pieces = threading.get_ident(), b"p" * 1000, 300
    before = signal.signal(signal.SIGUSR2, lambda *_: None)

    def send_and_disturb() -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            for _ in range(pieces):
                there.sendall(piece)
                signal.pthread_kill(main, signal.SIGUSR2)

    sender = threading.Thread(target=send_and_disturb)
    try:
        sender.start()
        assert sockets.receive(here, len(piece) * pieces) == piece * pieces
    finally:
        here.close()
        sender.join(TIME_LIMIT)
        signal.signal(signal.SIGUSR2, before)
        there.close()


@pytest.mark.thorough
def test_a_part_of_more_than_two_gibibytes_arrives() -> None:
    size = (1 << 31) + 5
    here, there = socket.socketpair()
    with here, there:
        sender = threading.Thread(target=lambda: there.sendall(bytes(size)))
        sender.start()
        assert len(sockets.receive(here, size)) == size
        sender.join(TIME_LIMIT)


@pytest.mark.parametrize(
    "answer",
    [struct.pack("<IQ", 1, 2**64 - 1), struct.pack("<IQQ", 2, 1 << 40, 1), b"\xff" * 4],
    ids=["size", "two sizes", "number of parts"],
)
def test_a_peer_that_announces_impossible_sizes_is_lost(
    answer: bytes,
) -> None:
    transport, inbox = SocketTransport(), Received()
    transport.listen(0, "worker0", inbox)  # type: ignore[arg-type]
    with socket.create_server(("127.0.0.1", 0)) as callee:
        transport.learn(1, "worker1", json.dumps(callee.getsockname()))
        transport.send(1, [memoryview(b"call")], reply=False)
        connection, _ = callee.accept()
        with connection:
            connection.sendall(answer)
            connection.shutdown(socket.SHUT_WR)

            assert inbox.losses.get(timeout=TIME_LIMIT)[0] == 1
    transport.close(TIME_LIMIT)
