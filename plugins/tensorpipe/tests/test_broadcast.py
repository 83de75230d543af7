"""Broadcasts of a change, and which of them a member believes."""

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
    """A listener, and what came to it."""

    def __init__(self, key: bytes = KEY, host: str = "127.0.0.1") -> None:
        self.key = key
        self.taken: list[bytes] = []
        self.read = threading.Semaphore(0)
        self.listener = LivenessListener(f"uv://{host}:1", self._read)
        self.address = self.listener.address

    def _read(self, connection: socket.socket) -> None:
        try:
            broadcast.receive(connection, self.key, ID, self.taken.append)
        finally:
            self.read.release()


@pytest.fixture
def member() -> Iterator[Member]:
    made = Member()
    yield made
    made.listener.close()


@contextlib.contextmanager
def somebody(address: tuple[str, int], *sent: bytes) -> Iterator[socket.socket]:
    """Connect to a member, and send something."""
    with socket.create_connection(address, 10) as connection:
        for piece in sent:
            connection.sendall(piece)
        yield connection


def hung_up(connection: socket.socket) -> bool:
    """Say no more; return whether the other side hangs up: with a reset, if it left a part unread."""
    try:
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(1) == b""
    except OSError as error:  # a reset, seen by either; no timeout
        return error.errno in (errno.ECONNRESET, errno.ENOTCONN)


def test_all_are_told_at_once_and_each_answers_for_itself(member: Member) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gone = listener.getsockname()
    other = Member()
    with contextlib.closing(other.listener), socket.create_server(("127.0.0.1", 0)) as silent:
        addresses = [member.address, gone, silent.getsockname(), other.address]

        taken = broadcast.send_to_all(addresses, broadcast.sealed(TEXT, KEY), 1.0)

    assert taken == [True, False, False, True]
    assert member.taken == other.taken == [TEXT]


def test_a_list_that_does_not_fit_in_the_sockets_buffers_arrives_whole(member: Member) -> None:
    text = bytes(range(256)) * (1 << 14)

    assert broadcast.send_to_all([member.address], broadcast.sealed(text, KEY), 30) == [True]
    assert member.taken == [text]


def test_nobody_to_tell_is_told_at_once() -> None:
    assert broadcast.send_to_all([], broadcast.sealed(TEXT, KEY), 0) == []


def test_who_does_not_have_the_key_of_the_group_is_not_believed(member: Member) -> None:
    assert broadcast.send_to_all([member.address], broadcast.sealed(TEXT, OTHER_KEY), 10) == [False]
    assert member.taken == []


def test_who_changes_one_bit_on_the_way_is_not_believed(member: Member) -> None:
    message = bytearray(broadcast.sealed(TEXT, KEY))
    message[-1] ^= 1

    assert broadcast.send_to_all([member.address], bytes(message), 10) == [False]
    assert member.taken == []


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
        pytest.param(broadcast.sealed(TEXT, KEY)[:-1], id="all but the last byte"),
        pytest.param(struct.pack("!I", 0xFFFFFFFF) + b"x" * 64, id="a length of 4 GiB"),
    ],
)
def test_what_is_no_message_costs_its_connection_and_no_other(member: Member, sent: bytes) -> None:
    with somebody(member.address, sent) as connection:
        assert hung_up(connection)

    assert broadcast.send_to_all([member.address], broadcast.sealed(TEXT, KEY), 10) == [True]
    assert member.taken == [TEXT]


def test_who_is_slow_keeps_nobody_else_waiting(member: Member) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(somebody(member.address, b"\0"))

        assert broadcast.send_to_all([member.address], broadcast.sealed(TEXT, KEY), 3) == [True]


def test_a_member_that_is_asked_whether_it_lives_is_told_nothing_else(member: Member) -> None:
    assert is_alive(member.address, QUESTION)
    assert member.read.acquire(timeout=10)
    assert member.taken == []


def test_a_member_that_says_nothing_may_be_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "_PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as suspended:
        assert is_alive(suspended.getsockname(), QUESTION)


@pytest.mark.parametrize(
    "asked", [broadcast.question(ID + 1, KEY), broadcast.question(ID, OTHER_KEY)]
)
def test_a_member_whose_port_another_one_has_now_is_gone(member: Member, asked: bytes) -> None:
    assert not is_alive(member.address, asked)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_closed_listener_leaves_no_thread_and_is_not_alive(host: str) -> None:
    before = set(threading.enumerate())
    one = Member(host=host)
    with somebody(one.address, b"\0"):  # it is being read
        one.listener.close()
        deadline = time.monotonic() + 10
        while set(threading.enumerate()) - before and time.monotonic() < deadline:
            time.sleep(0.01)
    assert not set(threading.enumerate()) - before
    assert not is_alive(one.address, QUESTION)
