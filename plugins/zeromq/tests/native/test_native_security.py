"""Which peers are admitted, which claims are trusted, and how invalid messages are handled."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from native_workers import (
    TIME_LIMIT,
    Intruder,
    Worker,
    eventually,
    greeting,
    message,
)

from rpc_backend_zeromq._native import TransportError, make_keys

MakeWorker = Callable[..., Worker]


# --- keys ----------------------------------------------------------------------------------------


def test_an_unknown_key_is_refused(make: MakeWorker) -> None:
    worker0, stranger = (make(n, True).listen("tcp://127.0.0.1:*") for n in (0, 1))
    stranger.learn(worker0)
    stranger.try_to_send(0, b"let me in")
    line = worker0.log_line("127.0.0.1")
    assert stranger.key is not None
    assert stranger.key.decode() in line
    assert "does not belong to any worker that this worker knows" in line
    assert stranger.lost() == (
        f"handshake with {worker0.endpoint} failed: the peer does not know this worker's key"
    )
    assert worker0.transport.receive(0) is None
    assert worker0.metric("refused") >= 1


def test_a_key_is_admitted_once_learned(make: MakeWorker) -> None:
    worker0, worker1 = (make(n, True).listen("tcp://127.0.0.1:*") for n in (0, 1))
    worker1.learn(worker0)
    worker1.try_to_send(0, b"too early")
    worker1.lost()
    worker0.learn(worker1)
    worker1.next("found")
    worker1.send(0, b"x")
    assert worker0.message() == (1, [b"x"])


def test_unknown_keys_are_looked_up_by_callback(make: MakeWorker) -> None:
    asked: list[bytes] = []

    def whose(key: bytes, waited: float) -> int | None:
        asked.append(key)
        return 7 if key == worker7.key else None

    worker0 = make(0, True, on_unknown_key=whose).listen("tcp://127.0.0.1:*")
    worker7, stranger = (make(n, True).listen("tcp://127.0.0.1:*") for n in (7, 8))
    for caller in (worker7, stranger):
        caller.learn(worker0)
        caller.try_to_send(0, b"x")
    assert worker0.message() == (7, [b"x"])
    assert "does not belong to any worker of the group" in worker0.log_line("does not belong to")
    stranger.lost()
    # The address of worker 7 is unknown: worker 0 can answer it, but cannot call it.
    worker0.send(7, b"reply", reply=True)
    assert worker7.message() == (0, [b"reply"])
    with pytest.raises(TransportError, match="worker 7 is not known"):
        worker0.send(7, b"x")
    assert asked.count(worker7.key or b"") == 1


def test_a_worker_that_leaves_during_its_lookup_is_refused(make: MakeWorker) -> None:
    def whose(key: bytes, waited: float) -> int:
        worker0.transport.forget(7)
        return 7

    worker0 = make(0, True, on_unknown_key=whose).listen("tcp://127.0.0.1:*")
    worker7 = make(7, True).listen("tcp://127.0.0.1:*").learn(worker0)
    worker7.try_to_send(0, b"x")
    assert "worker 7 has left the group" in worker7.lost()
    assert worker0.transport.receive(0) is None


def test_a_slow_lookup_delays_no_other_peer(make: MakeWorker) -> None:
    lookup_started, end_lookup = threading.Event(), threading.Event()

    def whose(key: bytes, waited: float) -> int | None:
        lookup_started.set()
        end_lookup.wait(TIME_LIMIT)
        return 2

    worker0 = make(0, True, on_unknown_key=whose).listen("tcp://127.0.0.1:*")
    worker1, worker2 = (make(n, True).listen("tcp://127.0.0.1:*").learn(worker0) for n in (1, 2))
    worker0.learn(worker1)
    worker2.send(0, b"from two")
    assert lookup_started.wait(TIME_LIMIT)
    worker1.send(0, b"from one")
    assert worker0.message() == (1, [b"from one"])
    end_lookup.set()
    assert worker0.message() == (2, [b"from two"])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("answer", [ZeroDivisionError(), "seven", 1 << 40])
def test_a_failed_lookup_refuses_the_key(make: MakeWorker, answer: Any) -> None:
    def whose(key: bytes, waited: float) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    worker0 = make(0, True, on_unknown_key=whose).listen("tcp://127.0.0.1:*")
    worker1 = make(1, True).listen("tcp://127.0.0.1:*").learn(worker0)
    worker1.try_to_send(0, b"x")
    assert "does not know this worker's key" in worker1.lost()


def test_a_listener_with_another_key_gets_nothing(make: MakeWorker) -> None:
    worker0, worker1, other = (make(n, True).listen("tcp://127.0.0.1:*") for n in (0, 1, 2))
    worker1.learn(worker0)
    worker0.transport.learn(1, worker1.endpoint, other.key)
    worker0.try_to_send(1, b"for one only")
    assert "handshake" in worker0.lost()
    assert worker1.transport.receive(0) is None
    assert "key is not the one" in worker1.log_line("a connection to")


@pytest.mark.parametrize("caller_encrypts", [False, True])
def test_encryption_on_one_side_fails_the_handshake(
    make: MakeWorker, caller_encrypts: bool
) -> None:
    caller, called = make(0, caller_encrypts), make(1, not caller_encrypts)
    for worker in (caller, called):
        worker.listen("tcp://127.0.0.1:*")
    key = make_keys()[0] if caller_encrypts else None
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
    with pytest.raises(TransportError, match="a public key must be 40 characters"):
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


def test_keys_that_do_not_belong_together_are_an_error(make: MakeWorker) -> None:
    with pytest.raises(TransportError, match="does not belong to the secret key"):
        make(0, public_key=make_keys()[0], secret_key=make_keys()[1])


# --- intruders that know the protocol ------------------------------------------------------------


def plain(text: bytes) -> bytes:
    """Return a message of one part."""
    return message(len(text)) + text


def refusal_without_messages(worker: Worker, intruder: Intruder) -> str:
    """Make a worker read until the intruder is refused; it must get no message. Return the reason."""
    reason: list[str] = []
    reading = threading.Thread(
        target=lambda: reason.append(intruder.rest().decode(errors="replace"))
    )
    reading.start()
    until = time.monotonic() + TIME_LIMIT
    while reading.is_alive():
        assert worker.transport.receive(0.01) is None
        assert time.monotonic() < until, "the intruder is not refused"
    assert worker.transport.receive(0) is None
    return reason[0]


def test_a_message_has_the_expected_form(make: MakeWorker, encrypted: bool) -> None:
    """Intruders of these tests can send valid messages, so a refusal is not due to how they send."""
    worker0, worker1 = (make(n, encrypted).listen("tcp://127.0.0.1:*") for n in (0, 1))
    worker0.learn(worker1)
    intruder = Intruder(worker0, greeting(1), worker1).admitted()
    intruder.send(plain(b"hello"))
    assert worker0.message() == (1, [b"hello"])
    intruder.send(message(5000, 3), b"x" * 5000, b"abc")
    assert worker0.message() == (1, [b"x" * 5000, b"abc"])
    worker0.send(1, b"reply", reply=True)
    assert intruder.read(len(plain(b"reply"))) == plain(b"reply")


def test_a_worker_cannot_impersonate_another(make: MakeWorker) -> None:
    """The key identifies a worker. The id that a connection claims does not."""
    worker0, worker1, worker2 = (make(n, True).listen("tcp://127.0.0.1:*") for n in (0, 1, 2))
    worker0.learn(worker1, worker2)
    impostor = Intruder(worker0, greeting(1), worker2)
    impostor.send(plain(b"I am one"))
    reason = impostor.refusal()
    assert "a process that claims to be worker 1 has the key of worker 2" in reason
    worker0.log_line("worker 1 has the key of worker 2")
    worker1.learn(worker0)
    worker1.send(0, b"I am")
    assert worker0.message() == (1, [b"I am"])
    worker0.send(1, b"for one", reply=True)
    assert worker1.message() == (0, [b"for one"])


@pytest.mark.parametrize(
    "name",
    [
        b"x" * 56,
        greeting(1, form=b"RPCZMQ\x00\x04"),
        greeting(1, form=b"RPCUNIX\x01"),
        greeting(-1),
    ],
    ids=["text", "a later version", "an earlier version", "negative"],
)
def test_an_invalid_greeting_is_refused(make: MakeWorker, encrypted: bool, name: bytes) -> None:
    worker0, worker1 = (make(n, encrypted).listen("tcp://127.0.0.1:*") for n in (0, 1))
    worker0.learn(worker1)
    intruder = Intruder(worker0, name, worker1)
    assert "not a worker of this version" in intruder.refusal()
    worker1.learn(worker0)
    worker1.send(0, b"fine")
    assert worker0.message() == (1, [b"fine"])


MALFORMED = {
    "another version": b"\1\1\0\0\0\0\0\0",
    "another kind": message(kind=7, count=0),
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "the most parts that fit the field": message(*[0] * 8, count=0xFFFFFFFF),
    "larger than the limit": message(1 << 40),
    "the largest sizes": message(*[(1 << 64) - 1] * 4),
    "larger than the limit in sum": message(*[1 << 29] * 3),
    "a heartbeat with parts": message(kind=3, count=1),
    "a refusal that is too long": message(kind=2, count=1 << 20),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_an_invalid_message_ends_its_connection(
    make: MakeWorker, encrypted: bool, data: bytes
) -> None:
    worker0, worker1, worker2 = (make(n, encrypted).listen("tcp://127.0.0.1:*") for n in (0, 1, 2))
    worker0.learn(worker1, worker2)
    intruder = Intruder(worker0, greeting(2), worker2).admitted()
    intruder.send(plain(b"good"))
    assert worker0.message() == (2, [b"good"])
    intruder.send(data, plain(b"good again, and too late"))
    assert refusal_without_messages(worker0, intruder)
    worker0.log_line("worker 2: the peer sent an invalid message")
    assert worker0.metric("rejected") == 1
    # Other peers are unaffected, and the refused peer may connect again.
    worker1.learn(worker0)
    worker1.send(0, b"fine")
    assert worker0.message() == (1, [b"fine"])
    again = Intruder(worker0, greeting(2), worker2).admitted()
    again.send(plain(b"better"))
    assert worker0.message() == (2, [b"better"])


def test_an_invalid_reply_makes_its_sender_lost(make: MakeWorker) -> None:
    worker0 = make(0).listen("tcp://127.0.0.1:*")
    with socket.create_server(("127.0.0.1", 0)) as liar:
        worker0.transport.learn(1, f"tcp://127.0.0.1:{liar.getsockname()[1]}", None)
        worker0.send(1, b"x")
        caller, _ = liar.accept()
        with caller:
            assert len(caller.recv(56, socket.MSG_WAITALL)) == 56
            caller.sendall(ADMITTED + b"nonsense")
            assert "the peer sent an invalid message" in worker0.lost()
        again, _ = liar.accept()
        with again:
            again.sendall(ADMITTED)
            worker0.next("found")  # the port is still open


#: The answer to a greeting.
ADMITTED = greeting(1)[:8] + struct.pack("<II", 1, 0) + bytes(32)


def test_reject_reports_the_reason_to_the_peer(pair: tuple[Worker, Worker]) -> None:
    worker0, worker1 = pair
    worker0.send(1, b"what the agent cannot read")
    worker1.message()
    worker1.send(0, b"x")
    worker0.message()
    worker1.transport.reject(0, "a message that is none")
    worker1.transport.reject(17, "nobody")
    assert "a message that is none" in worker0.lost()
    assert worker1.lost() == "rejected: a message that is none"
    for worker in pair:
        worker.next("found")
    worker0.send(1, b"better")
    assert worker1.message() == (0, [b"better"])


# --- an attacker on the path ---------------------------------------------------------------------


class Relay:
    """A process on the path: it passes on what two workers send, and may change it.

    :ivar seen: what the caller has sent.
    """

    def __init__(self, target: str) -> None:
        self.target = ("127.0.0.1", int(target.rpartition(":")[2]))
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self.listening.getsockname()[1]}"
        self.changes = False
        self.seen = b""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self.listening.accept()
                called = socket.create_connection(self.target)
                for ends in ((caller, called, True), (called, caller, False)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket, is_callers: bool) -> None:
        with contextlib.suppress(OSError), source, to:
            while data := bytearray(source.recv(1 << 16)):
                if is_callers:
                    self.seen += data
                    if self.changes:
                        data[len(data) // 2] ^= 1
                to.sendall(data)


@pytest.fixture
def relayed(make: MakeWorker) -> Iterator[tuple[Worker, Worker, Relay]]:
    """Yield two workers that encrypt, and what is between them."""
    worker0, worker1 = (make(n, True).listen("tcp://127.0.0.1:*") for n in (0, 1))
    relay = Relay(worker1.endpoint)
    worker0.transport.learn(1, relay.endpoint, worker1.key)
    worker1.learn(worker0)
    yield worker0, worker1, relay
    relay.listening.close()


def test_a_changed_bit_ends_the_connection_and_loses_the_message(
    relayed: tuple[Worker, Worker, Relay],
) -> None:
    worker0, worker1, relay = relayed
    worker0.send(1, b"before")
    assert worker1.message() == (0, [b"before"])
    relay.changes = True
    worker0.send(1, b"x" * 100_000)
    worker1.log_line("worker 0: the data that arrived was changed on its way")
    relay.changes = False
    worker0.lost()
    worker0.next("found")
    worker0.send(1, b"after")
    assert worker1.message() == (0, [b"after"])


def test_an_attacker_on_the_path_sees_no_data(relayed: tuple[Worker, Worker, Relay]) -> None:
    worker0, worker1, relay = relayed
    secrets = [os.urandom(32) * 100 for _ in range(100)]
    worker0.send(1, *secrets)
    assert worker1.message() == (0, secrets)
    assert len(relay.seen) > sum(map(len, secrets))
    for secret in secrets:
        assert secret[:16] not in relay.seen
    for key in (worker0.key, worker1.key):
        assert key is not None
        assert key not in relay.seen


# --- connections that know no protocol -----------------------------------------------------------

#: The start of TLS: a record with a message of 196 bytes.
HELLO = bytes.fromhex("16030100c8010000c40303")
GARBAGE = {
    "nothing": b"",
    "a byte": b"x",
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": bytes(100_000),
    "ones": b"\xff" * 100_000,
    "random": os.urandom(100_000),
    "ZeroMQ": b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(47),
    "half a greeting": greeting(1)[:20],
    "a greeting, then random": greeting(-1) + os.urandom(100_000),
    "half a TLS handshake": HELLO + os.urandom(100),
    "an invalid TLS handshake": HELLO + os.urandom(100_000),
    "a record of 64 KiB": b"\x16\x03\x03\xff\xff" + os.urandom(100_000),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_disturbs_no_peer(pair: tuple[Worker, Worker], garbage: bytes) -> None:
    worker0, worker1 = pair
    worker0.send(1, b"before")
    worker1.message()
    port = int(worker1.endpoint.rpartition(":")[2])
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
    worker0.send(1, b"after")
    assert worker1.message() == (0, [b"after"])
    worker1.send(0, b"reply", reply=True)
    assert worker0.message() == (1, [b"reply"])
    for connection in open_connections:
        connection.close()


def test_an_unfinished_handshake_times_out(make: MakeWorker) -> None:
    worker0 = make(0, handshake_timeout=0.2).listen("tcp://127.0.0.1:*")
    with socket.create_connection(
        ("127.0.0.1", int(worker0.endpoint.rpartition(":")[2]))
    ) as connection:
        connection.settimeout(TIME_LIMIT)
        connection.sendall(greeting(1)[:20])
        while connection.recv(1000):
            pass
    eventually(lambda: worker0.metric("failed_handshakes") == 1, "the failed handshake is counted")
