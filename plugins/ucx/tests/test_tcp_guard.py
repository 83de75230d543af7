"""What arrives on a worker's TCP port reaches UCX only from processes that have the group's key."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rpc_backends_processes import free_port
from support import steps
from support.ucx_transports import (
    CONNECTION_KEY,
    TIMEOUT,
    Address,
    Echo,
    learn,
    listeners,
    next_event,
    siphash_tag,
    transport,
    worker_settings,
)
from support.workers import WorkerContext, Workers

#: UCX's magic number: with it, UCX's TCP transport begins a connection.
_UCX = (0xCAFEBABE12345678).to_bytes(8, "little")


def frame(number: int, content: bytes) -> bytes:
    """Return what ends a worker if UCX reads it: an active message with an id that UCP uses."""
    return _UCX + struct.pack("<BI", number, len(content)) + content


FRAMES = [
    frame(number, content)
    for number in (9, 10, 11, 12)
    for content in (bytes(64), b"\xff" * 64, b"")
]


def proof(number: int, receiver: Address, key: bytes = CONNECTION_KEY) -> bytes:
    """Return the proof for connection ``number`` to a receiver."""
    text = f"{receiver[0]} port {receiver[1]}"
    return (
        b"UCXTCP01"
        + struct.pack("<QQ", 4711, number)
        + siphash_tag("connect", 4711, number, text, key)
    )


def answer(number: int) -> bytes:
    """Return what a receiver answers to a proof."""
    return siphash_tag("accept", 4711, number, "", CONNECTION_KEY)


def connect(address: Address) -> socket.socket:
    """Return a connection to a worker's port."""
    return socket.create_connection(address, timeout=TIMEOUT)


def is_closed(connection: socket.socket) -> bool:
    """Return whether the worker has closed a connection without sending anything; waits until then."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.fixture
def me() -> Iterator[Any]:
    """Yield the transport of worker 0."""
    made = transport(0, trusted=True)
    yield made
    made.close(0)


@pytest.fixture
def worker(me: Any) -> Iterator[Echo]:
    """Yield worker 1, in a process of its own."""
    with Echo(me, media="tcp") as made:
        yield made


@pytest.fixture
def port(worker: Echo) -> Address:
    """Return an address on which worker 1 listens."""
    return listeners(worker.process.pid)[0]


def works(me: Any, peer: int = 1) -> bool:
    """Return whether a worker echoes a message."""
    message = [os.urandom(100)]
    me.send(peer, message, False)
    return bool(next_event(me)[2] == message)


def part_of_a_proof(port: Address) -> bytes:
    """Return a proof without its last byte, for which a frame's first byte cannot stand."""
    proofs = (proof(number, port) for number in itertools.count(1))
    return next(whole for whole in proofs if whole[-1] != _UCX[0])[:-1]


BEFORE_FRAMES: dict[str, Callable[[Address], bytes]] = {
    "nothing": lambda port: b"",
    "part of a proof": part_of_a_proof,
    "a proof with another key": lambda port: proof(1, port, bytes(32)),
    "a proof for another receiver": lambda port: proof(1, (port[0], port[1] ^ 1)),
    "a changed proof": lambda port: proof(1, port)[:39] + bytes([proof(1, port)[39] ^ 1]),
}


@pytest.mark.parametrize("before", BEFORE_FRAMES)
def test_frames_of_strangers_do_not_reach_ucx(
    me: Any, worker: Echo, port: Address, before: str
) -> None:
    for attack in FRAMES:
        with connect(port) as stranger:
            stranger.sendall(BEFORE_FRAMES[before](port) + attack)
            assert is_closed(stranger)

    assert works(me)
    assert worker.process.poll() is None


def test_a_proof_is_accepted_once(me: Any, worker: Echo, port: Address) -> None:
    with connect(port) as member:
        member.sendall(proof(7, port))
        assert member.recv(16, socket.MSG_WAITALL) == answer(7)
    for number in (7, 6, 7):
        with connect(port) as connection:
            connection.sendall(proof(number, port) + (frame(9, bytes(64)) if number == 7 else b""))
            if number == 6:  # not used yet
                assert connection.recv(16, socket.MSG_WAITALL) == answer(6)
            else:
                assert is_closed(connection)
    assert works(me)


def test_a_proof_may_arrive_in_pieces(worker: Echo, port: Address) -> None:
    with connect(port) as member:
        member.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in proof(1, port):
            member.sendall(bytes([byte]))
        assert member.recv(16, socket.MSG_WAITALL) == answer(1)


def test_a_connection_without_a_proof_is_closed_after_a_time() -> None:
    short = transport(0, trusted=True, handshake_timeout=0.3)
    try:
        for address in listeners(os.getpid()):
            with connect(address) as stranger:
                stranger.sendall(proof(1, address)[:20])
                assert is_closed(stranger)
        assert int(short.metrics()["ucx.refused"]) >= 1
    finally:
        short.close(0)


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Let this process open thousands of descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_thousands_of_idle_strangers_leave_room_for_members(me: Any) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))  # the worker inherits this limit
    with contextlib.ExitStack() as stack:
        worker = stack.enter_context(Echo(me, media="tcp"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        port, descriptors = listeners(worker.process.pid)[0], Path(f"/proc/{worker.process.pid}/fd")
        before = len(list(descriptors.iterdir()))
        for _ in range(3000):
            stack.enter_context(connect(port))

        assert works(me)  # connects now
        assert len(list(descriptors.iterdir())) < before + 1024 // 8 + 20


def test_a_worker_does_not_read_from_a_stranger_that_has_taken_a_peers_port(me: Any) -> None:
    settings = worker_settings(trusted=True)
    number = free_port()  # the kernel gives it to no other process after the peer
    settings["config"].append(("TCP_PORT_RANGE", f"{number}-{number}"))
    peer = transport(1, **settings)
    mine = set(listeners(os.getpid()))
    address = peer.address()
    peer.close(0)
    ports = sorted(mine - set(listeners(os.getpid())))
    with contextlib.ExitStack() as stack:
        strangers = []
        for port in ports:
            stranger = stack.enter_context(socket.socket())
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            stranger.bind(port)
            stranger.listen()
            stranger.setblocking(False)
            strangers.append(stranger)
        learn(me, 0, 1, address)
        me.send(1, [b"hello"], False)
        until = time.monotonic() + TIMEOUT
        while (event := me.receive(0.01)) is None and time.monotonic() < until:
            for stranger in strangers:
                with contextlib.suppress(BlockingIOError):
                    connection, _ = stranger.accept()
                    stack.enter_context(connection).sendall(frame(10, bytes(64)))
        assert event is not None
        assert event[0] == "lost"


def take_part(me: WorkerContext, url: str, **options: Any) -> list[Address]:
    """Join a dynamic group over TCP; return the addresses on which the worker listens."""
    over = {"trusted_network": True, "transports": ["tcp"]}
    steps.join(me, url, backend="UCX", world_size=None, **over, **options)
    return listeners(os.getpid())


@pytest.mark.slow
@pytest.mark.parametrize("has_secret", [False, True], ids=["without a secret", "with a secret"])
def test_a_worker_joins_while_strangers_attack(tmp_path: Path, text: str, has_secret: bool) -> None:
    url = f"file://{tmp_path}/store"
    options = {"secret": text} if has_secret else {}
    with Workers(3, seconds=120) as workers, contextlib.ExitStack() as stack:
        for worker in list(workers)[:2]:
            for port in worker.call(take_part, url, **options):
                for attack in (b"", *FRAMES):
                    stranger = stack.enter_context(connect(port))
                    stranger.sendall(attack)
        workers[2].call(take_part, url, **options)

        for name in ("worker0", "worker1"):
            workers[2].call(steps.call, name)
        workers.run(steps.leave)
