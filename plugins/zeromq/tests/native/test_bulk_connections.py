"""Large messages have connections of their own: small ones pass them, and they may use several."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from native_workers import Intruder, Worker, eventually, greeting, message, piece

MakeWorker = Callable[..., Worker]
MIB = 1 << 20
#: More than all sockets between two workers take.
LARGE = 48 * MIB


class Relay:
    """Passes the bytes of connections on to a worker. Each connection can be held."""

    def __init__(self, target: Worker) -> None:
        self._port = int(target.endpoint.rpartition(":")[2])
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listening.getsockname()[1]}"
        #: Set for each connection, in the order in which they were made, while it passes bytes on.
        self.passing: list[threading.Event] = []
        self._sockets: list[list[socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._port))
            passing = threading.Event()
            passing.set()
            self.passing.append(passing)
            self._sockets.append([near, far])
            for source, target in ((near, far), (far, near)):
                threading.Thread(
                    target=self._pass_on, args=(source, target, passing), daemon=True
                ).start()

    def _pass_on(
        self, source: socket.socket, target: socket.socket, passing: threading.Event
    ) -> None:
        try:
            while data := source.recv(1 << 16):
                passing.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def cut(self, number: int) -> None:
        """End a connection on both sides."""
        for end in self._sockets[number]:
            end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End everything."""
        self._listening.close()
        for number, passing in enumerate(self.passing):
            passing.set()
            for end in self._sockets[number]:
                end.close()


@pytest.fixture
def relayed(make: MakeWorker, encrypted: bool) -> Iterator[tuple[Worker, Worker, Relay]]:
    """Yield two workers, and the relay through which the first calls the other; a lane is up."""
    worker0, worker1 = (make(n, encrypted).listen("tcp://127.0.0.1:*") for n in (0, 1))
    relay = Relay(worker1)
    worker0.transport.learn(1, relay.endpoint, worker1.key)
    worker1.learn(worker0)
    worker0.send(1, bytes(MIB))
    assert worker1.message() == (0, [bytes(MIB)])
    # Each side knows that the second connection is up once pieces have passed it in its direction.
    eventually(
        lambda: _passes(worker0, worker1) and _passes(worker1, worker0, reply=True),
        "a bulk connection",
    )
    yield worker0, worker1, relay
    relay.close()


def _passes(sender: Worker, receiver: Worker, *, reply: bool = False) -> bool:
    """Send a large message; return whether large ones take the second connection by now."""
    sender.send(receiver.id, bytes(MIB), reply=reply)
    receiver.message()
    return sender.metric("bulk_pieces") > 0


@pytest.mark.parametrize("reply", [False, True], ids=["request", "reply"])
def test_a_small_message_arrives_while_a_large_one_has_not(
    relayed: tuple[Worker, Worker, Relay], reply: bool
) -> None:
    worker0, worker1, relay = relayed
    sender, receiver = (worker1, worker0) if reply else (worker0, worker1)
    relay.passing[1].clear()
    large = os.urandom(LARGE)
    sender.send(receiver.id, large, reply=reply)
    for number in range(100):
        sender.send(receiver.id, b"small %d" % number, reply=reply)
        assert receiver.message() == (sender.id, [b"small %d" % number])
    relay.passing[1].set()
    _, parts = receiver.message()
    assert hashlib.sha256(parts[0]).digest() == hashlib.sha256(large).digest()


def test_a_worker_whose_bulk_connection_ends_is_lost(
    relayed: tuple[Worker, Worker, Relay],
) -> None:
    worker0, worker1, relay = relayed
    relay.passing[1].clear()
    worker0.send(1, bytes(LARGE))
    relay.cut(1)
    assert "connection reset by" in worker0.lost()
    worker0.next("found")
    worker0.send(1, b"again")
    assert worker1.message() == (0, [b"again"])


@pytest.mark.parametrize("connections", [0, 1, 4, 16])
def test_large_messages_arrive_over_any_number_of_connections(
    make: MakeWorker, encrypted: bool, connections: int
) -> None:
    worker0, worker1 = (
        make(n, encrypted, bulk_connections=connections).listen("tcp://127.0.0.1:*") for n in (0, 1)
    )
    worker0.learn(worker1)
    worker1.learn(worker0)
    sent = [
        [os.urandom(size), b"", b"x", os.urandom(5 * MIB + 3)] for size in range(1, 3 * MIB, MIB)
    ]
    for parts in sent:
        worker0.send(1, *parts)
    assert sorted(worker1.message()[1] for _ in sent) == sorted(sent)
    eventually(lambda: worker0.metric("connections") == 1 + connections, "connections")
    for parts in sent:
        worker1.send(0, *parts, reply=True)
        worker0.send(1, *parts)
    assert sorted(worker1.message()[1] for _ in sent) == sorted(sent)
    assert sorted(worker0.message()[1] for _ in sent) == sorted(sent)
    assert worker0.metric("connections") == 1 + connections


def test_close_sends_large_and_small_messages(
    make: MakeWorker, encrypted: bool, where: Callable[[str], str]
) -> None:
    for medium in ("tcp", "ipc"):
        worker0, worker1 = (
            make(n, encrypted, bulk_connections=3).listen(where(medium)) for n in (0, 1)
        )
        worker0.learn(worker1)
        worker1.learn(worker0)
        sent = [bytes([number]) * (MIB if number % 2 else 9) for number in range(20)]
        for part in sent:
            worker0.send(1, part)
        closing = threading.Thread(target=worker0.transport.close, args=(20,))
        closing.start()
        assert sorted(worker1.message()[1][0] for _ in sent) == sorted(sent)
        closing.join()


def test_within_a_host_large_messages_have_one_connection(
    make: MakeWorker, where: Callable[[str], str]
) -> None:
    worker0, worker1 = (make(n, bulk_connections=4).listen(where("ipc")) for n in (0, 1))
    worker0.learn(worker1)
    worker0.send(1, bytes(LARGE))
    worker1.message()
    eventually(lambda: worker0.metric("connections") == 2, "a bulk connection")


def test_a_bulk_connection_needs_the_first_one(make: MakeWorker, encrypted: bool) -> None:
    worker0, worker1 = (make(n, encrypted).listen("tcp://127.0.0.1:*") for n in (0, 1))
    worker0.learn(worker1)
    Intruder(worker0, greeting(1, lane=1), worker1)
    worker0.log_line("the connection to which this one belongs has ended")


def test_a_worker_takes_16_bulk_connections_of_a_peer(make: MakeWorker, encrypted: bool) -> None:
    worker0, worker1 = (make(n, encrypted).listen("tcp://127.0.0.1:*") for n in (0, 1))
    worker0.learn(worker1)
    at = time.time_ns()
    first = Intruder(worker0, greeting(1, time_ns=at), worker1).admitted()
    lanes = [
        Intruder(worker0, greeting(1, lane=lane, time_ns=at), worker1).admitted()
        for lane in range(1, 17)
    ]
    for lane in (3, 17, 1 << 31):
        Intruder(worker0, greeting(1, lane=lane, time_ns=at), worker1)
        worker0.log_line("a connection for large messages has the wrong number")
        worker0.lines.clear()
    lanes[5].send(message(5), b"hello")
    assert worker0.message() == (1, [b"hello"])
    del first


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ([piece(0, 99, [99], 99, parts=2)], "a piece is too short"),
        ([piece(0, 1 << 40, [1 << 40], 1 << 20)], "larger than the"),
        ([piece(0, MIB, [2 * MIB], MIB)], "the sizes of a piece do not fit together"),
        ([piece(0, MIB, [MIB], 2 * MIB)], "parts that its message has not"),
        ([piece(0, MIB, [MIB], 64, offset=MIB)], "begins behind its part"),
        ([piece(0, MIB, [9, MIB - 9], MIB, first=1, parts=2)], "parts that its message has not"),
        (
            [piece(0, MIB, [MIB], 1 << 16) + bytes(1 << 16), piece(0, MIB, [MIB], 1 << 16)],
            "a piece came twice",
        ),
        (
            [piece(0, MIB, [MIB], 1 << 16) + bytes(1 << 16), piece(0, 2 * MIB, [MIB], 1 << 16)],
            "differs from the others",
        ),
        (
            # The last has no content: unread content would make the kernel drop the reason. The others
            # have the last bytes of small messages, because only the last piece may be so short.
            [piece(n, 64, [64], 16, offset=48) + bytes(16 if n < 1024 else 0) for n in range(1025)],
            "too many messages are unfinished",
        ),
    ],
)
def test_a_false_piece_ends_the_connection(make: MakeWorker, pieces: list[bytes], why: str) -> None:
    worker0 = make(0).listen("tcp://127.0.0.1:*")
    intruder = Intruder(worker0, greeting(1)).admitted()
    ended = threading.Thread(target=worker0.transport.receive, args=(60,))
    ended.start()
    intruder.send(*pieces)
    assert why.encode() in intruder.rest()
    worker0.transport.close(0)
    ended.join()
