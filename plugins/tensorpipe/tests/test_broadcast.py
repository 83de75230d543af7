"""Broadcasts of membership updates, and which of them a member accepts."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from rpc_backend_tensorpipe import broadcast, liveness
from rpc_backend_tensorpipe.liveness import LivenessListener, is_alive

ID = 3
KEY, OTHER_KEY = b"k" * 32, b"o" * 32
TEXT = b'{"version": 7}'
QUESTION = broadcast.question(ID, KEY)


class Member:
    """A listener, and the broadcasts that it accepted."""

    def __init__(self, key: bytes = KEY, host: str = "127.0.0.1") -> None:
        self.key = key
        self.accepted: list[bytes] = []
        self.read = threading.Semaphore(0)
        self.listener = LivenessListener(f"uv://{host}:1", self._read)
        self.address = self.listener.address

    def _read(self, connection: socket.socket) -> None:
        try:
            broadcast.receive(connection, self.key, ID, self.accepted.append)
        finally:
            self.read.release()


@pytest.fixture
def member() -> Iterator[Member]:
    made = Member()
    yield made
    made.listener.close()


@contextlib.contextmanager
def connected(address: tuple[str, int], *sent: bytes) -> Iterator[socket.socket]:
    """Connect to a member and send some bytes."""
    with socket.create_connection(address, 10) as connection:
        for piece in sent:
            connection.sendall(piece)
        yield connection


def is_closed_by_peer(connection: socket.socket) -> bool:
    """Stop sending; return whether the peer closes the connection, with a reset if data was unread."""
    try:
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(1) == b""
    except OSError as error:  # both calls can fail with a reset; a timeout does not count
        return error.errno in (errno.ECONNRESET, errno.ENOTCONN)


def test_each_address_gets_the_broadcast_and_its_own_result(member: Member) -> None:
    second = Member()
    with (
        contextlib.closing(second.listener),
        socket.create_server(("127.0.0.1", 0)) as silent,
        socket.socket() as gone,
    ):
        gone.bind(("127.0.0.1", 0))  # no other socket gets this port, and none listens
        addresses = [member.address, gone.getsockname(), silent.getsockname(), second.address]

        accepted = broadcast.send_to_all(addresses, broadcast.sealed(TEXT, KEY), 1.0)

    assert accepted == [True, False, False, True]
    assert member.accepted == second.accepted == [TEXT]


def test_a_list_larger_than_the_socket_buffers_arrives_whole(member: Member) -> None:
    text = bytes(range(256)) * (1 << 14)

    assert broadcast.send_to_all([member.address], broadcast.sealed(text, KEY), 30) == [True]
    assert member.accepted == [text]


def test_a_broadcast_to_no_address_returns_at_once() -> None:
    assert broadcast.send_to_all([], broadcast.sealed(TEXT, KEY), 0) == []


def test_a_message_with_another_key_is_rejected(member: Member) -> None:
    assert broadcast.send_to_all([member.address], broadcast.sealed(TEXT, OTHER_KEY), 10) == [False]
    assert member.accepted == []


def test_a_message_with_a_changed_bit_is_rejected(member: Member) -> None:
    message = bytearray(broadcast.sealed(TEXT, KEY))
    message[-1] ^= 1

    assert broadcast.send_to_all([member.address], bytes(message), 10) == [False]
    assert member.accepted == []


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
        pytest.param(broadcast.sealed(TEXT, KEY)[:-1], id="all but the last byte"),
        pytest.param(struct.pack("!I", 0xFFFFFFFF) + b"x" * 64, id="a length of 4 GiB"),
    ],
)
def test_an_invalid_message_closes_only_its_connection(member: Member, sent: bytes) -> None:
    with connected(member.address, sent) as connection:
        assert is_closed_by_peer(connection)

    assert broadcast.send_to_all([member.address], broadcast.sealed(TEXT, KEY), 10) == [True]
    assert member.accepted == [TEXT]


def test_a_slow_sender_does_not_block_others(member: Member) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(connected(member.address, b"\0"))

        assert broadcast.send_to_all([member.address], broadcast.sealed(TEXT, KEY), 3) == [True]


def test_a_liveness_check_is_not_a_broadcast(member: Member) -> None:
    assert is_alive(member.address, QUESTION)
    assert member.read.acquire(timeout=10)
    assert member.accepted == []


def test_a_member_that_does_not_respond_may_be_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "_CONNECT_TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as suspended:
        assert is_alive(suspended.getsockname(), QUESTION)


@pytest.mark.parametrize(
    "question", [broadcast.question(ID + 1, KEY), broadcast.question(ID, OTHER_KEY)]
)
def test_a_member_whose_port_was_reused_is_gone(member: Member, question: bytes) -> None:
    assert not is_alive(member.address, question)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_closed_listener_leaves_no_thread_and_is_not_alive(host: str) -> None:
    before = set(threading.enumerate())
    member = Member(host=host)
    with connected(member.address, b"\0"):  # the listener has begun to read this message
        member.listener.close()
        deadline = time.monotonic() + 10
        while set(threading.enumerate()) - before and time.monotonic() < deadline:
            time.sleep(0.01)
    assert not set(threading.enumerate()) - before
    assert not is_alive(member.address, QUESTION)


def test_a_listener_survives_a_default_timeout_of_sockets() -> None:
    socket.setdefaulttimeout(0.01)
    try:
        member = Member()
        member.listener._thread.join(0.3)  # it ends if accept() times out
        assert broadcast.send_to_all([member.address], broadcast.sealed(TEXT, KEY), 10) == [True]
        assert is_alive(member.address, QUESTION)
    finally:
        socket.setdefaulttimeout(None)
    member.listener.close()
    assert member.accepted == [TEXT]


def test_a_failed_acknowledgement_is_not_a_failed_update() -> None:
    accepted: list[bytes] = []
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(broadcast.sealed(TEXT, KEY))

        def accept(text: bytes) -> None:
            accepted.append(text)
            theirs.close()  # the sender no longer waits for the acknowledgement

        broadcast.receive(ours, KEY, ID, accept)
    assert accepted == [TEXT]


def test_a_member_that_can_start_no_thread_is_alive(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    for _ in range(2 * liveness._READERS):
        assert is_alive(member.address, QUESTION)
