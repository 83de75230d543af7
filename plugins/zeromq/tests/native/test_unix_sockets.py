"""Connections over Unix sockets: which processes are admitted, and how invalid messages are handled."""

from __future__ import annotations

import os
import random
import resource
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from native_workers import (
    ANSWER_SIZE,
    FORM,
    TIME_LIMIT,
    VERSION,
    Event,
    Worker,
    check_kept,
    eventually,
    greeting,
    message,
    slowly,
)

from rpc_backend_zeromq._native import TransportError

MakeWorker = Callable[..., Worker]

NOBODY = 65534
#: The proofs in our greeting, the peer's greeting, our answer and the peer's answer.
PROOFS = (b"a" * 32, b"b" * 32, b"c" * 32, b"d" * 32)
MIRRORED = (PROOFS[1], PROOFS[0], PROOFS[3], PROOFS[2])


@pytest.fixture
def worker0(make: MakeWorker, tmp_path: Path) -> Worker:
    """Yield a worker that listens on a Unix socket and admits every process that can use it."""
    # These tests' own connections answer no heartbeats, so the heartbeat timeout is long.
    return make(0, heartbeat_timeout=TIME_LIMIT).listen(f"ipc://{tmp_path}/zero")


@pytest.fixture
def worker1(make: MakeWorker, tmp_path: Path, worker0: Worker) -> Iterator[Worker]:
    """Yield a peer that calls the worker, and can still call it at the end of the test."""
    worker = make(1, heartbeat_timeout=TIME_LIMIT).listen(f"ipc://{tmp_path}/one").learn(worker0)
    worker0.learn(worker)
    worker.send(0, b"before")
    assert worker0.message() == (1, [b"before"])
    yield worker
    worker.send(0, b"after")
    assert worker0.message() == (1, [b"after"])


@pytest.fixture
def public() -> Iterator[Path]:
    """Yield a folder that all users can enter; pytest's are private, and other sessions keep them so."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def connect(to: Worker, *, greet_as: int | None = None) -> socket.socket:
    """Connect, and authenticate as a worker if requested."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(TIME_LIMIT)
    connection.connect(to.endpoint.removeprefix("ipc://"))
    if greet_as is not None:
        connection.sendall(greeting(greet_as))
        answer = connection.recv(ANSWER_SIZE, socket.MSG_WAITALL)
        assert answer[:12] == FORM + b"\x01\0\0\0"
    return connection


def ended(connection: socket.socket, by: Worker | None = None) -> bytes:
    """Wait until the other side closes a connection; return the data that arrived before.

    :param by: a worker that reads meanwhile, and must get no message.
    """
    text = b""
    connection.settimeout(TIME_LIMIT if by is None else 0.02)
    while True:
        try:
            more = connection.recv(4096)
        except TimeoutError:
            assert by is not None
            assert by.transport.receive(0) is None
        except ConnectionResetError:
            return text
        else:
            text += more
            if not more:
                return text


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# --- admission -----------------------------------------------------------------------------------


def test_workers_with_matching_proofs_communicate(make: MakeWorker, tmp_path: Path) -> None:
    worker0, worker1 = (make(n, wants_proofs=True).listen(f"ipc://{tmp_path}/{n}") for n in (0, 1))
    worker0.transport.learn(1, worker1.endpoint, None, PROOFS)
    worker1.transport.learn(0, worker0.endpoint, None, MIRRORED)

    worker1.send(0, b"x")
    assert worker0.message() == (1, [b"x"])
    worker0.send(1, b"y", reply=True)
    assert worker1.message() == (0, [b"y"])


def test_a_caller_without_the_proof_is_refused(make: MakeWorker, tmp_path: Path) -> None:
    worker0, worker1 = (make(n, wants_proofs=True).listen(f"ipc://{tmp_path}/{n}") for n in (0, 1))
    worker0.transport.learn(1, worker1.endpoint, None, PROOFS)
    worker1.transport.learn(0, worker0.endpoint, None, (b"z" * 32, *MIRRORED[1:]))

    worker1.try_to_send(0, b"x")

    assert worker1.lost().endswith("failed: its proof does not belong to any worker of the group")
    assert worker0.transport.receive(0) is None
    assert worker0.metric("refused") >= 1


def test_nothing_is_sent_to_a_listener_without_proof(make: MakeWorker, tmp_path: Path) -> None:
    worker0, worker1 = (make(n, wants_proofs=True).listen(f"ipc://{tmp_path}/{n}") for n in (0, 1))
    worker0.transport.learn(1, worker1.endpoint, None, (*PROOFS[:2], b"z" * 32, PROOFS[3]))
    worker1.transport.learn(0, worker0.endpoint, None, MIRRORED)

    worker1.try_to_send(0, b"x")

    assert worker1.lost().endswith("failed: the listening process cannot prove that it is the peer")
    assert worker0.transport.receive(0) is None


def test_a_false_worker_id_is_refused(make: MakeWorker, tmp_path: Path) -> None:
    worker0 = make(0, wants_proofs=True).listen(f"ipc://{tmp_path}/0")
    worker0.transport.learn(1, f"ipc://{tmp_path}/1", None, PROOFS)
    with connect(worker0) as connection:
        connection.sendall(greeting(2, PROOFS[1]))
        assert b"a process that claims to be worker 2 has the proof of worker 1" in ended(
            connection
        )


def test_a_proof_is_admitted_once_looked_up(make: MakeWorker, tmp_path: Path) -> None:
    asked: list[bytes] = []

    def whose(proof: bytes, _waited: float) -> int | None:
        asked.append(proof)
        worker0.transport.learn(1, worker1.endpoint, None, PROOFS)
        return 1

    worker0 = make(0, wants_proofs=True, on_unknown_key=whose).listen(f"ipc://{tmp_path}/0")
    worker1 = make(1, wants_proofs=True).listen(f"ipc://{tmp_path}/1")
    worker1.transport.learn(0, worker0.endpoint, None, MIRRORED)

    worker1.send(0, b"x")

    assert worker0.message() == (1, [b"x"])
    assert asked == [PROOFS[1]]


def test_proofs_of_a_wrong_length_are_an_error(make: MakeWorker, tmp_path: Path) -> None:
    worker0 = make(0, wants_proofs=True).listen(f"ipc://{tmp_path}/0")
    with pytest.raises(
        TransportError, match="the proofs of worker 1 are invalid: each must be 32 bytes"
    ):
        worker0.transport.learn(1, "ipc:///x", None, (b"short", *PROOFS[1:]))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused(make: MakeWorker, public: Path) -> None:
    """This holds even if folder and socket are open to all users."""
    worker0, worker1 = (
        make(n, heartbeat_timeout=TIME_LIMIT).listen(f"ipc://{public}/{n}") for n in (0, 1)
    )
    worker1.learn(worker0.learn(worker1))
    Path(worker0.endpoint.removeprefix("ipc://")).chmod(0o666)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setuid(NOBODY)
            connection = connect(worker0)
            connection.sendall(greeting(5))
            status = 0 if ended(connection) == b"" else 2
        except BrokenPipeError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert f"user {NOBODY}, but this is user 0" in worker0.log_line("Unix socket")
    assert worker0.metric("refused") == 1
    worker1.send(0, b"after")
    assert worker0.message() == (1, [b"after"])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_nothing_is_sent_to_a_socket_of_another_user(make: MakeWorker, public: Path) -> None:
    place = public / "theirs"
    place.mkdir()
    place.chmod(0o777)
    to_child, to_parent = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setuid(NOBODY)
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(str(place / "one"))
            listening.listen()
            os.write(to_parent[1], b"x")
            os.read(to_child[0], 1)
        finally:
            os._exit(0)
    os.close(to_parent[1])  # so that the end of the child ends the next line
    assert os.read(to_parent[0], 1) == b"x"
    worker0 = make(0).listen(f"ipc://{public}/zero")
    worker0.transport.learn(1, f"ipc://{place}/one", None)

    worker0.try_to_send(1, b"x")

    assert f"the listening process is process {child} of user {NOBODY}" in worker0.lost()
    os.write(to_child[1], b"x")
    os.waitpid(child, 0)
    for descriptor in (*to_child, to_parent[0]):
        os.close(descriptor)


# --- strangers -----------------------------------------------------------------------------------


def test_a_silent_connection_is_closed(make: MakeWorker, tmp_path: Path) -> None:
    worker0 = make(0, handshake_timeout=0.3).listen(f"ipc://{tmp_path}/zero")
    with connect(worker0) as connection:
        assert ended(connection) == b""
    eventually(lambda: worker0.metric("failed_handshakes") == 1, "the failed handshake is counted")


def test_few_of_many_silent_connections_are_kept(worker0: Worker, worker1: Worker) -> None:
    """The oldest connections are closed for newer ones, so workers can connect."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    with ExitStack() as stack:
        open_connections = [stack.enter_context(connect(worker0)) for _ in range(1000)]
        eventually(lambda: worker0.metric("failed_handshakes") >= 1000 - 256, "most are closed")
        assert len(list(Path("/proc/self/fd").iterdir())) - before <= len(open_connections) + 256
        worker1.send(0, b"meanwhile")
        assert worker0.message() == (1, [b"meanwhile"])
        with connect(worker0, greet_as=2) as connection:
            connection.sendall(message(3) + b"new")
            assert worker0.message() == (2, [b"new"])


@pytest.mark.parametrize(
    "what",
    [b"GET / HTTP/1.1\r\n\r\n", bytes(56), FORM + b"\xff" * 48, b"\xff\0\0\0\0\0\0\0\1\x7f" + b"3"],
    ids=["http", "zeros", "no worker", "zmtp"],
)
def test_an_invalid_greeting_is_refused(worker0: Worker, worker1: Worker, what: bytes) -> None:
    with connect(worker0) as connection:
        connection.sendall(what)
        assert b"the connecting process is not a worker of this version" in ended(connection)
    assert worker0.metric("refused") == 1


def test_half_a_greeting_disturbs_no_peer(worker0: Worker, worker1: Worker) -> None:
    with connect(worker0) as connection:
        connection.sendall(greeting(5)[:20])
        worker1.send(0, b"meanwhile")
        assert worker0.message() == (1, [b"meanwhile"])
    eventually(lambda: worker0.metric("failed_handshakes") == 1, "the failed handshake is counted")


# --- invalid messages ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (message(2**63), b"larger than the 1073741824-byte limit"),
        (message(*[2**62] * 4), b"larger than the 1073741824-byte limit"),
        (message(2**64 - 1, 2), b"larger than the 1073741824-byte limit"),
        (message(count=65537), b"too many parts"),
        (message(kind=9), b"not a message of this protocol version"),
        (message(version=VERSION + 1), b"not a message of this protocol version"),
        (message(kind=2, count=501), b"a refusal is too long"),
        (message(kind=3, count=1), b"a heartbeat has parts"),
    ],
)
def test_an_invalid_message_is_refused_with_the_reason(
    worker0: Worker, worker1: Worker, what: bytes, why: bytes
) -> None:
    with connect(worker0, greet_as=2) as connection:
        connection.sendall(what)
        assert why in ended(connection, worker0)
    assert worker0.metric("rejected") == 1


def test_an_announced_size_takes_no_memory(worker0: Worker, worker1: Worker) -> None:
    """The message is read as its bytes arrive."""
    before = peak_mib()
    with ExitStack() as stack:
        for worker in range(2, 12):
            connection = stack.enter_context(connect(worker0, greet_as=worker))
            connection.sendall(message(1 << 30) + bytes(1000))
        worker1.send(0, b"meanwhile")
        assert worker0.message() == (1, [b"meanwhile"])
        assert peak_mib() - before < 64


def test_a_connection_closed_mid_message_disturbs_no_peer(worker0: Worker, worker1: Worker) -> None:
    with connect(worker0, greet_as=2) as connection:
        connection.sendall(message(100, 100_000) + bytes(50_000))


def test_a_message_may_arrive_byte_by_byte(worker0: Worker, worker1: Worker) -> None:
    parts = [b"first", b"", os.urandom(5000), b"last"]
    whole = message(*map(len, parts)) + b"".join(parts)
    with connect(worker0, greet_as=2) as connection:
        sender = threading.Thread(
            target=lambda: [connection.sendall(whole[i : i + 1]) for i in range(len(whole))]
        )
        sender.start()
        assert worker0.message() == (2, parts)
        sender.join()


@pytest.mark.parametrize("seed", range(20))
def test_parts_of_any_size_arrive(worker0: Worker, worker1: Worker, seed: int) -> None:
    chance = random.Random(seed)
    limits = [0, 1, 15, 16, 4095, 4096, 4097, 16383, 16384, 16385, 131071, 131072, 1 << 20, 3 << 20]
    sent = []
    for _ in range(5):
        count = chance.choice([0, 1, 2, 3, 17, 70])
        sizes = [chance.choice(limits[: 14 if count < 4 else 10]) for _ in range(count)]
        sent.append([chance.randbytes(size) for size in sizes])
        worker1.send(0, *sent[-1])
    # Large ones may arrive after later ones.
    assert sorted(worker0.message() for _ in sent) == sorted((1, parts) for parts in sent)


def test_a_peer_that_answers_no_heartbeat_is_dropped(make: MakeWorker, tmp_path: Path) -> None:
    worker0 = make(0, heartbeat=0.1, heartbeat_timeout=0.5).listen(f"ipc://{tmp_path}/zero")
    with connect(worker0, greet_as=2) as connection:
        assert message(kind=3) in ended(connection, worker0)


#: Heartbeats for peers that are slow: a large message takes more than twice the timeout.
SLOW = {"heartbeat": 0.2, "heartbeat_timeout": 1.5}


def test_a_peer_that_reads_slowly_is_kept(make: MakeWorker, tmp_path: Path) -> None:
    timeout = SLOW["heartbeat_timeout"]
    check_kept(lambda: read_slowly(make(0, **SLOW).listen(f"ipc://{tmp_path}/zero")), timeout)


def read_slowly(worker0: Worker) -> tuple[bool, float]:
    """Read a large message slowly; return whether all of it came, and the longest pause."""
    with connect(worker0, greet_as=2) as connection:
        eventually(lambda: can_reply(worker0, 2, bytes(64 << 20)), "the connection is open")
        expected = len(message(64 << 20)) + (64 << 20)
        read = 0

        def read_some() -> None:
            nonlocal read
            read += len(connection.recv(100_000))

        pause = slowly(read_some, 2.2 * SLOW["heartbeat_timeout"])
        with suppress(ConnectionError):
            while read < expected and (piece := connection.recv(1 << 20)):
                read += len(piece)
    worker0.transport.close(0)
    return read >= expected, pause


def test_a_peer_that_writes_slowly_is_kept(make: MakeWorker, tmp_path: Path) -> None:
    timeout = SLOW["heartbeat_timeout"]
    check_kept(lambda: write_slowly(make(0, **SLOW).listen(f"ipc://{tmp_path}/zero")), timeout)


def write_slowly(worker0: Worker) -> tuple[bool, float]:
    """Write a large message slowly; return whether it arrived, and the longest pause."""
    with connect(worker0, greet_as=2) as connection:
        received: list[Event | None] = []
        receiver = threading.Thread(
            target=lambda: received.append(worker0.transport.receive(TIME_LIMIT))
        )
        receiver.start()
        size = 8 << 20
        left = memoryview(message(size) + bytes(size))

        def write_some() -> None:
            nonlocal left
            left = left[connection.send(left[:50_000]) :]

        pause = slowly(write_some, 2.2 * SLOW["heartbeat_timeout"])
        with suppress(ConnectionError):
            connection.sendall(left)
            receiver.join()
    worker0.transport.close(0)  # ends the receiver
    receiver.join()
    (event,) = received
    if event is not None:
        assert event[:2] == ("message", 2)
        assert event[2] == [bytes(size)]
    return event is not None, pause


def test_a_peer_that_stops_reading_is_dropped(make: MakeWorker, tmp_path: Path) -> None:
    """It has read a part of a large message before, and messages still wait for it."""
    worker0 = make(0, **SLOW).listen(f"ipc://{tmp_path}/zero")
    with connect(worker0, greet_as=2) as connection:
        eventually(lambda: can_reply(worker0, 2, bytes(64 << 20)), "the connection is open")
        assert connection.recv(100_000)
        eventually(lambda: not can_reply(worker0, 2, b"later"), "the peer is dropped")


def test_a_peer_that_stops_writing_is_dropped(make: MakeWorker, tmp_path: Path) -> None:
    worker0 = make(0, **SLOW).listen(f"ipc://{tmp_path}/zero")
    with connect(worker0, greet_as=2) as connection:
        connection.sendall(message(8 << 20) + bytes(100_000))
        assert message(kind=3) in ended(connection, worker0)


def can_reply(worker: Worker, peer: int, data: bytes) -> bool:
    """Send a reply; return False if there is no connection from the peer."""
    try:
        worker.send(peer, data, reply=True)
    except TransportError:
        return False
    return True


def test_a_burst_arrives_without_further_traffic(make: MakeWorker, tmp_path: Path) -> None:
    """One read takes more messages than a thread handles at once. No later event wakes the reader."""
    quiet = {"heartbeat": 2 * TIME_LIMIT, "heartbeat_timeout": 4 * TIME_LIMIT}
    worker0, worker1 = (make(n, **quiet).listen(f"ipc://{tmp_path}/{n}") for n in range(2))
    worker1.learn(worker0.learn(worker1))
    for number in range(1000):
        worker1.send(0, b"%d" % number)
    assert [worker0.message()[1] for _ in range(1000)] == [
        [b"%d" % number] for number in range(1000)
    ]


def test_close_waits_for_the_handshake_of_queued_messages(make: MakeWorker, tmp_path: Path) -> None:
    asked, answer = threading.Event(), threading.Event()

    def whose(_proof: bytes, _waited: float) -> int:
        asked.set()
        answer.wait(TIME_LIMIT)
        return 0

    worker0 = make(0, wants_proofs=True).listen(f"ipc://{tmp_path}/0")
    worker1 = make(1, wants_proofs=True, on_unknown_key=whose).listen(f"ipc://{tmp_path}/1")
    worker0.transport.learn(1, worker1.endpoint, None, PROOFS)
    worker0.send(1, b"queued")
    assert asked.wait(TIME_LIMIT)
    closing = threading.Thread(target=worker0.transport.close, args=(TIME_LIMIT,))
    closing.start()
    closing.join(0.2)  # time in which a close() that does not wait would end
    worker1.transport.learn(0, worker0.endpoint, None, MIRRORED)
    answer.set()
    assert worker1.message() == (0, [b"queued"])
    closing.join(TIME_LIMIT)


def test_a_message_of_a_forgotten_worker_is_refused(
    worker0: Worker, make: MakeWorker, tmp_path: Path
) -> None:
    caller = make(1).listen(f"ipc://{tmp_path}/caller").learn(worker0)
    worker0.learn(caller)
    caller.send(0, b"before")
    worker0.message()
    worker0.transport.forget(1)
    caller.send(0, b"late")
    assert "worker 1 has left the group" in caller.lost()
    assert worker0.transport.receive(0) is None
