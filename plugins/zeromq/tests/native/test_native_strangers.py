"""Strangers (unauthenticated connections to a worker's port) cost little and exclude no peer."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from native_workers import TIME_LIMIT, Child, Worker, eventually, greeting

MakeWorker = Callable[..., Worker]

MIB = 1 << 20
#: Number of connections: more than the handshakes that a worker allows at a time.
MANY = 1000
#: Limit of the worker's descriptors while many connect: 128 are for pending handshakes.
MOST_OPEN = 200
#: Bytes that pending handshakes may take.
MOST_HELD = 48 * MIB


def record(content: bytes, size: int | None = None, kind: int = 22) -> bytes:
    """Return a record of TLS that announces ``size`` bytes; 22: of the handshake."""
    return (
        bytes([kind])
        + b"\3\3"
        + (len(content) if size is None else size).to_bytes(2, "big")
        + content
    )


def handshake(kind: int, content: bytes, size: int | None = None) -> bytes:
    """Return a message of TLS's handshake that announces ``size`` bytes; 1: a ClientHello."""
    return bytes([kind]) + (len(content) if size is None else size).to_bytes(3, "big") + content


@functools.cache
def hello() -> bytes:
    """Return a genuine ClientHello."""
    sent, unused = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(unused, sent).do_handshake()
    return sent.read()


#: What strangers send once, right after connecting.
SENT = {
    "nothing": b"",
    "a byte": b"\x16",
    "another protocol": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a greeting without encryption": greeting(1),
    "an invalid hello": record(handshake(1, os.urandom(200))),
    "half a hello": hello()[:100],
    "a genuine hello": hello(),
    "a hello, then random": hello() + record(os.urandom(300), kind=23),
    "a hello, then another one": hello() + hello(),
    "another message": record(handshake(11, os.urandom(300))),
    "an alert": record(b"\1\0", kind=21),
    "the largest record": record(os.urandom(16_000), 16_384),
    "a record of 64 KiB": record(os.urandom(60_000), 65_535),
    "a hello of 16 MiB": record(handshake(1, os.urandom(16_000), 0xFFFFFF)),
}

WORKER = """
import resource
limit, encrypted = arguments
if limit:
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
worker = Worker(0, encrypted=encrypted).listen("tcp://127.0.0.1:*")
say([worker.endpoint, worker.key and worker.key.decode()])
def serve():
    while (event := worker.transport.receive()) is not None:
        if event[0] == "message":
            worker.send(event[1], *event[2], reply=True)
for _ in range(2):
    threading.Thread(target=serve, daemon=True).start()
files = []
while True:
    what, *values = hear()
    if what == "learn":
        worker.transport.learn(values[0], values[1], values[2] and values[2].encode())
    elif what == "take all files":
        try:
            while True:
                files.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
    elif what == "give them back":
        while files:
            os.close(files.pop())
    say(worker.transport.metrics())
"""


class Target:
    """An echo worker in its own process, and measurements of that process."""

    def __init__(self, start: Callable[..., Child], limit: int, encrypted: bool) -> None:
        self.child = start(WORKER, limit, encrypted)
        self.endpoint, key = self.child.hear()
        self.key: bytes | None = key and key.encode()
        self.folder = Path(f"/proc/{self.child.process.pid}")

    def tell(self, *what: Any) -> dict[str, str]:
        """Run a command in the worker; return the worker's metrics."""
        self.child.say(what)
        metrics: dict[str, str] = self.child.hear()
        return metrics

    def peer(self, make: MakeWorker, number: int) -> Worker:
        """Return a peer that has not connected yet."""
        peer = make(number, self.key is not None).listen("tcp://127.0.0.1:*")
        self.tell("learn", number, peer.endpoint, peer.key and peer.key.decode())
        peer.transport.learn(0, self.endpoint, self.key)
        return peer

    def stranger(self, sent: bytes) -> socket.socket:
        """Connect and send data, without waiting."""
        connection = socket.create_connection(self.address, timeout=TIME_LIMIT)
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # the worker may have closed the connection
            connection.send(sent)
        return connection

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", int(self.endpoint.rpartition(":")[2])

    def open_files(self) -> int:
        return len(list((self.folder / "fd").iterdir()))

    def memory(self, what: str = "VmHWM") -> int:
        """Return the worker's peak memory in bytes, or another field of its status."""
        for line in (self.folder / "status").read_text().splitlines():
            if line.startswith(f"{what}:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(what)

    def load(self, seconds: float = 0.5) -> float:
        """Measure the share of a CPU core that the worker uses."""

        def used() -> float:
            fields = (self.folder / "stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        before = used()
        time.sleep(seconds)
        return (used() - before) / seconds


@pytest.fixture
def target(start: Callable[..., Child], request: pytest.FixtureRequest) -> Target:
    """Return a worker that encrypts; the test's parameter limits its descriptors."""
    return Target(start, getattr(request, "param", 0), True)


def check_echo(peer: Worker, text: bytes = b"x") -> None:
    """Send the worker a message, and wait for its reply."""
    peer.send(0, text)
    assert peer.message() == (0, [text])


def has_echo(peer: Worker) -> bool:
    """Send the worker a message; return whether its reply comes, and not the loss of the worker."""
    peer.try_to_send(0, b"x")
    what, _, parts, _ = peer.next()
    assert what == "lost" or [bytes(part) for part in parts] == [b"x"]
    return what == "message"


@pytest.mark.parametrize("sent", SENT.values(), ids=SENT)
def test_many_strangers_hold_little_and_exclude_nobody(
    target: Target, make: MakeWorker, sent: bytes
) -> None:
    """1,000 strangers send data and stay open. Peers continue, new peers connect, and all is freed."""
    old, new = target.peer(make, 1), target.peer(make, 2)
    check_echo(old)
    files, memory = target.open_files(), target.memory("VmRSS")
    with contextlib.ExitStack() as open_connections:
        for _ in range(MANY):
            open_connections.enter_context(target.stranger(sent))
        check_echo(old)
        check_echo(new)
        eventually(lambda: target.open_files() < MOST_OPEN, "most connections are closed")
        assert target.memory() - memory < MOST_HELD
        assert target.load(0.3) < 0.5
    eventually(lambda: target.open_files() <= files + 1, "all connections are closed")
    check_echo(old, b"afterwards")


def test_an_unauthenticated_message_takes_little_memory(target: Target) -> None:
    """Two connections announce a message of 16 MiB of the handshake, and send 200 MiB."""
    memory = target.memory("VmRSS")

    def send_all() -> None:
        with target.stranger(b"") as connection, contextlib.suppress(OSError):
            connection.setblocking(True)
            connection.sendall(record(handshake(1, b"", 0xFFFFFF)))
            for _ in range(200 * MIB // 16_384):
                connection.sendall(record(bytes(16_384)))

    sending = [threading.Thread(target=send_all) for _ in range(2)]
    for thread in sending:
        thread.start()
    for thread in sending:
        thread.join()
    assert target.memory() - memory < 8 * MIB


@contextlib.contextmanager
def flood(target: Target, sent: bytes) -> Iterator[None]:
    """Open up to a thousand connections each second, which stay until they are closed."""
    stop = threading.Event()

    def come() -> None:
        open_connections: list[socket.socket] = []
        while not stop.is_set():
            time.sleep(0.001)
            with contextlib.suppress(OSError):
                open_connections.append(target.stranger(sent))
            if len(open_connections) > MANY:
                open_connections.pop(0).close()
        for connection in open_connections:
            connection.close()

    thread = threading.Thread(target=come)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("target", [0, 128], indirect=True, ids=["no limit", "128 files"])
def test_peers_connect_while_strangers_keep_coming(target: Target, make: MakeWorker) -> None:
    with flood(target, hello()[:50]):
        eventually(lambda: int(target.tell("")["zeromq.crowded_out"]) > MANY, "many are evicted")
        peers = [target.peer(make, number) for number in range(1, 6)]
        for peer in peers:
            # A handshake that takes long may be evicted for strangers; the peer tries again.
            while not has_echo(peer):
                peer.next("found")
                assert peer.metric("peers_lost") < 5
            assert target.open_files() < MOST_OPEN
        assert min(peer.metric("peers_lost") for peer in peers) == 0
    check_echo(peer)


@pytest.mark.parametrize("target", [128], indirect=True)
def test_idle_connections_leave_the_process_descriptors(target: Target, make: MakeWorker) -> None:
    old, new = target.peer(make, 1), target.peer(make, 2)
    check_echo(old)
    with contextlib.ExitStack() as open_connections:
        for _ in range(300):
            open_connections.enter_context(target.stranger(b""))
        eventually(lambda: target.open_files() < 128 - 16, "the program can open files")
        assert target.load() < 0.5
        check_echo(old)
        check_echo(new)


@pytest.mark.parametrize("target", [128], indirect=True)
def test_a_process_without_descriptors_waits_without_load(target: Target, make: MakeWorker) -> None:
    """While none is free, new peers may be refused; connected peers stay. Later, new peers connect."""
    old, new = target.peer(make, 1), target.peer(make, 2)
    check_echo(old)
    target.tell("take all files")
    with contextlib.ExitStack() as open_connections:
        for _ in range(100):
            open_connections.enter_context(target.stranger(b""))
        eventually(lambda: target.load() < 0.5, "it waits without load")
        check_echo(old)
        new.try_to_send(0, b"x")
        if new.next()[0] == "message":  # the new peer got a descriptor that a stranger had used
            target.tell("give them back")
        else:
            target.tell("give them back")
            new.next("found")
        check_echo(new)
        check_echo(old)
