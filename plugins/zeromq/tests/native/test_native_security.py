"""Which peers are admitted, which claims are trusted, and how invalid messages are handled."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from native_workers import TIME_LIMIT, Worker, eventually

from rpc_backend_zeromq._native import TransportError

MakeWorker = Callable[..., Worker]


# --- keys ----------------------------------------------------------------------------------------


def test_an_unknown_key_is_refused(make: MakeWorker) -> None:
    zero, stranger = (make(n, True).listen("tcp://127.0.0.1:*") for n in (0, 1))
    stranger.learn(zero)
    stranger.try_to_send(0, b"let me in")
    line = zero.log_line("127.0.0.1")
    assert stranger.key is not None
    assert stranger.key.decode() in line
    assert "does not belong to any worker that this worker knows" in line
    assert stranger.lost() == (
        f"handshake with {zero.endpoint} failed: the peer does not know this worker's key"
    )
    assert zero.transport.receive(0.1) is None
    assert zero.metric("refused") >= 1


def test_a_key_is_admitted_once_learned(make: MakeWorker) -> None:
    zero, one = (make(n, True).listen("tcp://127.0.0.1:*") for n in (0, 1))
    one.learn(zero)
    one.try_to_send(0, b"too early")
    one.lost()
    zero.learn(one)
    one.next("found")
    one.send(0, b"x")
    assert zero.message() == (1, [b"x"])


def test_unknown_keys_are_looked_up_by_callback(make: MakeWorker) -> None:
    asked: list[bytes] = []

    def whose(key: bytes, waited: float) -> int | None:
        asked.append(key)
        return 7 if key == seven.key else None

    zero = make(0, True, on_unknown_key=whose).listen("tcp://127.0.0.1:*")
    seven, stranger = (make(n, True).listen("tcp://127.0.0.1:*") for n in (7, 8))
    for one in (seven, stranger):
        one.learn(zero)
        one.try_to_send(0, b"x")
    assert zero.message() == (7, [b"x"])
    assert "does not belong to any worker of the group" in zero.log_line("does not belong to")
    stranger.lost()
    # The address of worker 7 is unknown: worker 0 can answer it, but cannot call it.
    zero.send(7, b"reply", reply=True)
    assert seven.message() == (0, [b"reply"])
    with pytest.raises(TransportError, match="worker 7 is not known"):
        zero.send(7, b"x")
    assert asked.count(seven.key or b"") == 1


def test_a_slow_lookup_delays_no_other_peer(make: MakeWorker) -> None:
    lookup_started, end_lookup = threading.Event(), threading.Event()

    def whose(key: bytes, waited: float) -> int | None:
        lookup_started.set()
        end_lookup.wait(TIME_LIMIT)
        return 2

    zero = make(0, True, on_unknown_key=whose).listen("tcp://127.0.0.1:*")
    one, two = (make(n, True).listen("tcp://127.0.0.1:*").learn(zero) for n in (1, 2))
    zero.learn(one)
    two.send(0, b"from two")
    assert lookup_started.wait(TIME_LIMIT)
    one.send(0, b"from one")
    assert zero.message() == (1, [b"from one"])
    end_lookup.set()
    assert zero.message() == (2, [b"from two"])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("answer", [ZeroDivisionError(), "seven", 1 << 40])
def test_a_failed_lookup_refuses_the_key(make: MakeWorker, answer: Any) -> None:
    def whose(key: bytes, waited: float) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    zero = make(0, True, on_unknown_key=whose).listen("tcp://127.0.0.1:*")
    one = make(1, True).listen("tcp://127.0.0.1:*").learn(zero)
    one.try_to_send(0, b"x")
    assert "does not know this worker's key" in one.lost()


def test_a_listener_with_another_key_gets_nothing(make: MakeWorker) -> None:
    zero, one, other = (make(n, True).listen("tcp://127.0.0.1:*") for n in (0, 1, 2))
    one.learn(zero)
    zero.transport.learn(1, one.endpoint, other.key)
    zero.try_to_send(1, b"for one only")
    assert "handshake" in zero.lost()
    assert one.transport.receive(0.1) is None
    assert "key is not the one" in one.log_line("a connection to")


@pytest.mark.parametrize("caller_encrypts", [False, True])
def test_encryption_on_one_side_fails_the_handshake(
    make: MakeWorker, caller_encrypts: bool
) -> None:
    caller, called = make(0, caller_encrypts), make(1, not caller_encrypts)
    for worker in (caller, called):
        worker.listen("tcp://127.0.0.1:*")
    key = zmq.curve_keypair()[0] if caller_encrypts else None
    caller.transport.learn(1, called.endpoint, key)
    caller.try_to_send(1, b"x")
    # The connection may be closed before the caller has read the reason.
    assert f"handshake with {called.endpoint} failed" in caller.lost()
    called.log_line("one side encrypts and the other does not")


def test_missing_and_superfluous_keys_are_errors(make: MakeWorker) -> None:
    plain, secret = make(0), make(1, True)
    with pytest.raises(
        TransportError, match="worker 2 has no public key, and this worker encrypts"
    ):
        secret.transport.learn(2, "tcp://127.0.0.1:1", None)
    with pytest.raises(TransportError, match="worker 2 has a public key, and this worker does not"):
        plain.transport.learn(2, "tcp://127.0.0.1:1", secret.key)
    with pytest.raises(TransportError, match="not 40 characters"):
        secret.transport.learn(2, "tcp://127.0.0.1:1", b"short")
    with pytest.raises(TransportError, match="give both public_key and secret_key, or neither"):
        make(3, public_key=secret.key)
    with pytest.raises(TransportError, match="a key must be 40 characters"):
        make(3, public_key=b"short", secret_key=b"short")


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "tcp://",
        "tcp://host.example:1",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:0",
        "tcp://*:1",
        "tcp://127.0.0.1:99999",
        "tcp://::1:5",
        "tcp://[::1]",
        "ipc://",
        f"ipc:///{'x' * 200}",
        "inproc://x",
        "udp://127.0.0.1:1",
        "tcp://127.0.0.1:1\0",
        "tcp://127.0.0.1;1.2.3.4:5",
    ],
)
def test_an_invalid_endpoint_is_refused(make: MakeWorker, endpoint: str) -> None:
    with pytest.raises(TransportError, match="is not an endpoint to connect to"):
        make(0).transport.learn(1, endpoint, None)


# --- intruders that speak ZeroMQ -----------------------------------------------------------------


def route(worker: int, number: int = 0) -> bytes:
    """Return the name of a connection, in the form of csrc/route.cpp."""
    return b"RPC\x01" + struct.pack("<iQQ", worker, time.time_ns() + number, number)


def head(sizes: list[int], places: list[int] | None = None, inside: bytes = b"") -> bytes:
    """Return the first frame of a message, in the form of csrc/packed.cpp."""
    fields = [
        size | place << 62 for size, place in zip(sizes, places or [0] * len(sizes), strict=True)
    ]
    begin = struct.pack("<BBHI", 1, 2, 1, len(sizes)) + struct.pack(f"<{len(sizes)}Q", *fields)
    return begin + bytes(-len(begin) % 16) + inside


def plain(text: bytes) -> bytes:
    """Return the frame of a message of one small part."""
    return head([len(text)], inside=text + bytes(-len(text) % 16))


class Intruder:
    """An intruder that speaks ZeroMQ and sends arbitrary messages."""

    def __init__(
        self, context: zmq.Context[Any], name: bytes, to: Worker, by: Worker | None
    ) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.rcvtimeo = int(TIME_LIMIT * 1000)
        self.socket.routing_id = name
        if to.key is not None:
            assert by is not None
            self.socket.curve_publickey, self.socket.curve_secretkey = by.key, by.secret
            self.socket.curve_serverkey = to.key
        self.socket.connect(to.endpoint)

    def send(self, *frames: bytes) -> None:
        """Send a message."""
        self.socket.send_multipart(frames)

    def refusal(self) -> str:
        """Return the reason of the refusal that it received."""
        (frame,) = self.socket.recv_multipart()
        assert frame[:2] == b"\x02\x02", frame
        return frame[8:].decode()


MakeIntruder = Callable[..., Intruder]


def refusal_without_messages(worker: Worker, intruder: Intruder) -> str:
    """Make a worker read until the intruder is refused; it must get no message. Return the reason."""
    until = time.monotonic() + TIME_LIMIT
    while not intruder.socket.poll(0):
        assert worker.transport.receive(0.01) is None
        assert time.monotonic() < until, "the intruder is not refused"
    assert worker.transport.receive(0.01) is None
    return intruder.refusal()


@pytest.fixture
def intrude() -> Iterator[MakeIntruder]:
    """Yield a function that makes intruders."""
    with zmq.Context() as context:
        yield lambda name, to, by=None: Intruder(context, name, to, by)
        context.destroy(linger=0)


def test_a_message_has_the_expected_form(make: MakeWorker, intrude: MakeIntruder) -> None:
    """Intruders of these tests can send valid messages, so a refusal is not due to how they send."""
    zero = make(0).listen("tcp://127.0.0.1:*")
    other = intrude(route(1), zero)
    other.send(plain(b"hello"))
    assert zero.message() == (1, [b"hello"])
    other.send(head([5000, 3], [1, 0], b"abc" + bytes(13)), b"x" * 5000)
    assert zero.message() == (1, [b"x" * 5000, b"abc"])
    other.send(head([4, 6], [2, 2]))
    for piece in (b"ab", b"cd", b"efghij"):
        other.send(piece)
    assert zero.message() == (1, [b"abcd", b"efghij"])
    zero.send(1, b"reply", reply=True)
    assert other.socket.recv_multipart() == [plain(b"reply")]


def test_a_worker_cannot_impersonate_another(make: MakeWorker, intrude: MakeIntruder) -> None:
    """The key identifies a worker. The name that a connection claims does not."""
    zero, one, two = (make(n, True).listen("tcp://127.0.0.1:*") for n in (0, 1, 2))
    zero.learn(one, two)
    impostor = intrude(route(1), zero, two)
    impostor.send(plain(b"I am one"))
    reason = refusal_without_messages(zero, impostor)
    assert "a process that claims to be worker 1 has the key of worker 2" in reason
    zero.log_line("worker 1 has the key of worker 2")
    one.learn(zero)
    one.send(0, b"I am")
    assert zero.message() == (1, [b"I am"])
    zero.send(1, b"for one", reply=True)
    assert one.message() == (0, [b"for one"])
    assert not impostor.socket.poll(100)


@pytest.mark.parametrize(
    "name",
    [b"x", b"\0abcd", b"RPC\x02" + bytes(20), route(-1), b"x" * 255],
    ids=["short", "libzmq's own", "another version", "negative", "long"],
)
def test_an_invalid_connection_name_is_refused(
    make: MakeWorker, intrude: MakeIntruder, encrypted: bool, name: bytes
) -> None:
    zero, one = (make(n, encrypted).listen("tcp://127.0.0.1:*") for n in (0, 1))
    zero.learn(one)
    other = intrude(name, zero, one)
    other.send(plain(b"x"))
    other.send(b"", b"")
    assert "not a worker of this version" in refusal_without_messages(zero, other)
    one.learn(zero)
    one.send(0, b"fine")
    assert zero.message() == (1, [b"fine"])


MALFORMED = {
    "empty": [b""],
    "short": [b"\1\1"],
    "another version": [b"\1\1\0\0\0\0\0\0"],
    "another kind": [b"\7\2\0\0\0\0\0\0"],
    "text": [b"GET / HTTP/1.1\r\n\r\n"],
    "more parts than bytes": [struct.pack("<BBHI", 1, 2, 1, 1000)],
    "the most parts that fit the field": [struct.pack("<BBHI", 1, 2, 1, 0xFFFFFFFF) + bytes(64)],
    "longer than announced": [plain(b"x") + b"y"],
    "shorter than announced": [plain(b"x" * 32)[:-16]],
    "larger than the limit": [head([1 << 40], [2])],
    "the largest sizes": [head([(1 << 62) - 1] * 4, [2] * 4)],
    "larger than the limit in sum": [head([1 << 29] * 3, [2] * 3)],
    "an unknown place": [head([5], [3])],
    "an empty piece": [head([0], [2])],
    "without its second frame": [head([5], [1])],
    "a second frame of another size": [head([5], [1]), b"four"],
    "a frame too many": [plain(b"x"), b"y"],
    "70,000 frames": [plain(b"x"), *[b""] * 70_000],
    "10,000 frames and one": [head([0] * 10_000, [1] * 10_000), *[b""] * 10_001],
}


@pytest.mark.parametrize("frames", MALFORMED.values(), ids=MALFORMED)
def test_an_invalid_message_ends_its_connection(
    make: MakeWorker, intrude: MakeIntruder, frames: list[bytes]
) -> None:
    zero, one = (make(n).listen("tcp://127.0.0.1:*") for n in (0, 1))
    other = intrude(route(2), zero)
    other.send(plain(b"good"))
    assert zero.message() == (2, [b"good"])
    other.send(*frames)
    other.send(plain(b"good again, and too late"))
    assert refusal_without_messages(zero, other)
    zero.log_line("worker 2 sent an invalid message")
    assert zero.metric("rejected") == 1
    eventually(lambda: zero.metric("dropped_messages") == 1, "the message after it is dropped")
    # Other peers are unaffected, and the refused peer may connect again.
    one.learn(zero)
    one.send(0, b"fine")
    assert zero.message() == (1, [b"fine"])
    again = intrude(route(2, 1), zero)
    again.send(plain(b"better"))
    assert zero.message() == (2, [b"better"])


@pytest.mark.parametrize("pieces", [[b"abcdef"], [b"ab", b""], [b"ab", b"xyz"]])
def test_pieces_of_a_wrong_size_are_refused(
    make: MakeWorker, intrude: MakeIntruder, pieces: list[bytes]
) -> None:
    zero = make(0).listen("tcp://127.0.0.1:*")
    other = intrude(route(1), zero)
    other.send(head([4], [2]))
    for piece in pieces:
        other.send(piece)
    assert "a wrong size" in refusal_without_messages(zero, other)


def test_unfinished_messages_of_ended_connections_are_dropped(
    make: MakeWorker, intrude: MakeIntruder
) -> None:
    """Their memory is freed when no piece has arrived for the heartbeat timeout."""
    zero = make(0, heartbeat=0.2, heartbeat_timeout=1.0).listen("tcp://127.0.0.1:*")
    size = 300 << 20  # a block of this size is not kept for reuse
    before, begin = mapped_bytes(), time.monotonic()

    def is_held() -> bool:
        assert zero.transport.receive(0.01) is None
        return mapped_bytes() - before > size / 2

    other = intrude(route(1), zero)
    other.send(head([size], [2]))
    other.send(b"the first piece")
    eventually(is_held, "the message has its memory")
    other.socket.close()
    eventually(lambda: not is_held(), "the memory is freed")
    assert time.monotonic() - begin >= 1.0

    again = intrude(route(1, 1), zero)
    again.send(plain(b"x"))
    assert zero.message() == (1, [b"x"])


def mapped_bytes() -> int:
    """Return the size of this process's address space."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_an_oversized_frame_ends_its_connection(make: MakeWorker, intrude: MakeIntruder) -> None:
    zero = make(0, max_message=1000).listen("tcp://127.0.0.1:*")
    other = intrude(route(1), zero)
    monitor = other.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    other.send(plain(b"x"))
    zero.message()
    other.send(bytes(8 << 20))
    assert monitor.poll(TIME_LIMIT * 1000)
    other.socket.disable_monitor()


def test_an_invalid_reply_makes_its_sender_lost(make: MakeWorker) -> None:
    zero = make(0).listen("tcp://127.0.0.1:*")
    with zmq.Context() as context, context.socket(zmq.ROUTER) as liar:
        liar.linger = 0
        port = liar.bind_to_random_port("tcp://127.0.0.1")
        zero.transport.learn(1, f"tcp://127.0.0.1:{port}", None)
        zero.send(1, b"x")
        caller, _ = liar.recv_multipart()
        liar.send_multipart([caller, b"nonsense"])
        assert "the peer sent an invalid message" in zero.lost()
        zero.next("found")  # the port is still open


def test_reject_reports_the_reason_to_the_peer(pair: tuple[Worker, Worker]) -> None:
    zero, one = pair
    zero.send(1, b"what the agent cannot read")
    one.message()
    one.send(0, b"x")
    zero.message()
    one.transport.reject(0, "a message that is none")
    one.transport.reject(17, "nobody")
    assert "a message that is none" in zero.lost()
    assert one.lost() == "rejected: a message that is none"
    for worker in pair:
        worker.next("found")
    zero.send(1, b"better")
    assert one.message() == (0, [b"better"])


# --- connections that do not speak ZeroMQ -------------------------------------------------------

GREETING = b"\xff" + bytes(8) + b"\x7f"
GARBAGE = {
    "nothing": b"",
    "a byte": b"x",
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": bytes(100_000),
    "ones": b"\xff" * 100_000,
    "random": os.urandom(100_000),
    "a greeting": GREETING,
    "a greeting of version 1": GREETING + b"\x01\x05" + b"\x01\x00" * 1000,
    "a greeting of version 2": GREETING + b"\x01\x05\x00\x00" + b"\x00\x05hello" * 1000,
    "a greeting of version 3, then random": (
        GREETING + b"\x03\x01NULL" + bytes(48) + os.urandom(100_000)
    ),
    "no end": GREETING + b"\x03\x00NULL" + bytes(48) + b"\x06\xff" + b"\x7f" * 8 + bytes(100_000),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_disturbs_no_peer(pair: tuple[Worker, Worker], garbage: bytes) -> None:
    zero, one = pair
    zero.send(1, b"before")
    one.message()
    port = int(one.endpoint.rpartition(":")[2])
    open_connections = []
    for number in range(20):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.settimeout(TIME_LIMIT)
        try:
            connection.sendall(garbage)
        except OSError:
            connection.close()
            continue
        if number % 2:
            connection.close()
        else:
            open_connections.append(connection)
    zero.send(1, b"after")
    assert one.message() == (0, [b"after"])
    one.send(0, b"reply", reply=True)
    assert zero.message() == (1, [b"reply"])
    for connection in open_connections:
        connection.close()


def test_an_unfinished_handshake_times_out(make: MakeWorker) -> None:
    zero = make(0, handshake_timeout=0.2).listen("tcp://127.0.0.1:*")
    with socket.create_connection(
        ("127.0.0.1", int(zero.endpoint.rpartition(":")[2]))
    ) as connection:
        connection.settimeout(TIME_LIMIT)
        connection.sendall(GREETING)
        while connection.recv(1000):
            pass
    eventually(lambda: zero.metric("failed_handshakes") == 1, "the failed handshake is counted")
