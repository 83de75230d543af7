"""The C++ transport: messages and their order, losses, processes outside the group, leftovers."""

from __future__ import annotations

import os
import queue
import signal
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rpc_backend_ucx.library import native
from support.ucx_transports import (
    TIMEOUT,
    Echo,
    events_of,
    learn,
    next_event,
    pair,
    proof,
    transport,
)
from support.workers import suspend

pytestmark = pytest.mark.usefixtures("shared_memory_files")

#: Sizes of parts around every limit of the transport and of UCX.
SIZES = [0, 1, 92, 93, 4096, 4097, 8192, 8249, 65536, 1 << 20, (4 << 20) + 3]


def test_parts_of_every_size_arrive_unchanged() -> None:
    me, peer = pair()
    for parts in ([os.urandom(size)] for size in SIZES):
        me.send(1, parts, False)
        assert next_event(peer, me) == ("message", 0, parts, "")
    parts = [os.urandom(size) for size in (*SIZES, *reversed(SIZES))]
    me.send(1, parts, False)
    peer.send(0, parts, True)

    assert next_event(peer, me)[2] == parts
    assert next_event(me, peer)[2] == parts
    for worker in (me, peer):
        worker.close(1)


@pytest.mark.parametrize("count", [0, 1, 300, 65536])
def test_a_message_may_have_many_parts_or_none(count: int) -> None:
    me, peer = pair()
    parts = [bytes([i % 251]) for i in range(count)]

    me.send(1, parts, False)

    assert next_event(peer, me)[2] == parts
    with pytest.raises(RuntimeError, match="at most 65536 are possible"):
        me.send(1, [b""] * 65537, False)
    for worker in (me, peer):
        worker.close(1)


@pytest.mark.parametrize("media", ["shm", "tcp"])
def test_messages_arrive_once_and_in_order(media: str) -> None:
    """Small and large ones each keep their order, also if they were sent while the peer was suspended."""
    me = transport(0, trusted=media == "tcp")
    with Echo(me, media=media) as peer:
        me.send(1, [b"first"], False)
        assert next_event(me)[2] == [b"first"]
        suspend(peer.process.pid)
        for number in range(1500):
            size = 200_000 if number % 100 == 0 else number % 9000
            me.send(1, [number.to_bytes(4, "little"), bytes(size)], False)
        assert me.receive(0.2) is None
        os.kill(peer.process.pid, signal.SIGCONT)
        small, large = [], []
        for _ in range(1500):
            kind, _, parts, _ = next_event(me)
            assert kind == "message"
            (large if len(parts[1]) == 200_000 else small).append(
                int.from_bytes(parts[0], "little")
            )
        assert large == list(range(0, 1500, 100))
        assert small == [number for number in range(1500) if number % 100 != 0]
        me.close(1)


def test_a_message_larger_than_the_queue_leaves_while_a_thread_sleeps() -> None:
    """UCX sends the rest of the message when it is polled, and signals nothing."""
    me = transport(0, poll_time=0.0)
    events: queue.Queue[Any] = queue.Queue()

    def receive() -> None:
        while (event := me.receive(TIMEOUT)) is not None:
            events.put(event)

    receiver = threading.Thread(target=receive)
    parts = [bytes(200_000)] * 6
    with Echo(me):
        me.send(1, [b"first"], False)
        receiver.start()
        events.get(timeout=TIMEOUT)
        for _ in range(10):
            me.send(1, parts, False)
            assert events.get(timeout=TIMEOUT / 2)[2] == parts
        me.close(1)
        receiver.join()


@pytest.fixture
def one_core() -> Iterator[None]:
    """Run the test, and the threads that it starts, on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


def test_a_thread_polls_while_others_are_busy_with_events() -> None:
    """While UCX waits for a suspended peer, it signals no traffic, so a free thread must always poll."""
    receive_events_while_a_peer_is_suspended()


@pytest.mark.usefixtures("one_core")
def test_a_thread_takes_over_from_one_that_keeps_the_only_core() -> None:
    """A further thread is woken later if each core already has a thread, but it is woken."""
    receive_events_while_a_peer_is_suspended()


def receive_events_while_a_peer_is_suspended() -> None:
    me = transport(0, poll_time=0.0)
    with Echo(me, number=1) as suspended, Echo(me, number=2):
        for peer in (1, 2):
            me.send(peer, [b"first"], False)
            next_event(me)
        suspend(suspended.process.pid)
        for _ in range(1000):
            me.send(1, [b"waits"], False)
        for _ in range(20):
            receive_in_threads_that_stay_busy(me, 8)
        os.kill(suspended.process.pid, signal.SIGCONT)
        me.close(1)


def receive_in_threads_that_stay_busy(me: Any, count: int) -> None:
    """Let each thread receive one message, and then wait until all threads have received one."""
    received = threading.Semaphore(0)
    all_have = threading.Event()

    def receive() -> None:
        assert me.receive(TIMEOUT)[1] == 2
        received.release()
        all_have.wait(TIMEOUT)

    threads = [threading.Thread(target=receive) for _ in range(count)]
    for thread in threads:
        thread.start()
    for number in range(count - 1):
        me.send(2, [bytes([number])], False)
    assert all(received.acquire(timeout=TIMEOUT / 2) for _ in range(count - 1))
    me.send(2, [b"last"], False)
    is_received = received.acquire(timeout=TIMEOUT / 2)
    all_have.set()
    assert is_received
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("media", ["shm", "tcp"])
def test_a_killed_peer_is_lost_within_a_second(media: str) -> None:
    """A busy machine may take longer, but not each time."""
    assert any(seconds_of_loss(media) < 1 for _ in range(5))


def seconds_of_loss(media: str) -> float:
    """Kill a peer, and return after how many seconds it is lost."""
    me = transport(0, trusted=media == "tcp")
    with Echo(me, media=media, watched=media == "shm") as peer:
        me.send(1, [b"hello", bytes(1 << 20)], False)
        next_event(me)
        begun = time.monotonic()
        peer.process.kill()
        kind, worker, _, reason = next_event(me)
        took = time.monotonic() - begun

        assert (kind, worker) == ("lost", 1)
        with pytest.raises(RuntimeError, match="worker 1 is lost: ") as refused:
            me.send(1, [b"more"], False)
        assert reason in str(refused.value)
        me.close(1)
    return took


def test_a_peer_that_closes_is_lost_with_the_reason() -> None:
    me, peer = pair()
    me.send(1, [b"hello"], False)
    next_event(peer, me)

    peer.close(1)

    assert next_event(me) == ("lost", 1, [], "it has closed the connection")
    me.close(0)


@pytest.mark.parametrize(("media", "counts"), [("shm", range(244, 260)), ("tcp", [1, 3000])])
def test_a_peer_gets_the_goodbye_after_messages_in_flight(
    media: str, counts: Iterable[int]
) -> None:
    """In shared memory, one of these counts fills the peer's queue, and the goodbye waits for room."""
    for count in counts:
        me, peer = pair(trusted=media == "tcp")
        me.send(1, [b"hello"], False)
        next_event(peer, me)
        for number in range(count):
            me.send(1, [number.to_bytes(4, "little"), bytes(100)], False)
        closing = threading.Thread(target=me.close, args=(TIMEOUT,))
        closing.start()
        closing.join(0.05)  # so that the goodbye usually finds the queue as full as it is now

        for number in range(count):
            assert int.from_bytes(next_event(peer)[2][0], "little") == number
        assert next_event(peer) == ("lost", 0, [], "it has closed the connection")
        closing.join()
        peer.close(0)


def test_over_tcp_a_small_message_overtakes_a_large_one() -> None:
    me, peer = pair(trusted=True)
    me.send(1, [b"hello"], False)
    next_event(peer, me)
    large = bytes(64 << 20)
    me.send(1, [large], False)
    me.send(1, [b"small"], False)

    assert next_event(peer, me)[2] == [b"small"]
    assert next_event(peer, me)[2] == [large]
    for worker in (me, peer):
        worker.close(1)


def test_over_tcp_the_goodbye_comes_after_small_and_large_messages() -> None:
    """Each connection between the workers carries it behind its messages."""
    me, peer = pair(trusted=True)
    sizes = [size + number for number in range(10) for size in (100, 200_000, 2_000_000)]
    for size in sizes:
        me.send(1, [bytes(size)], False)
    closing = threading.Thread(target=me.close, args=(TIMEOUT,))
    closing.start()

    assert sorted(len(next_event(peer)[2][0]) for _ in sizes) == sorted(sizes)
    assert next_event(peer) == ("lost", 0, [], "it has closed the connection")
    closing.join()
    peer.close(0)


def test_closing_waits_for_a_suspended_peer_without_processor_time() -> None:
    me = transport(0)
    with Echo(me) as peer:
        me.send(1, [b"first"], False)
        next_event(me)
        suspend(peer.process.pid)
        for _ in range(1000):
            me.send(1, [bytes(1000)], False)
        before, begun = time.process_time(), time.monotonic()

        me.close(1)

        assert time.monotonic() - begun >= 1  # it has waited for the messages
        assert time.process_time() - before < 0.15


def test_killed_peers_leave_no_files_open() -> None:
    me = transport(0)
    files = len(open_files())
    for number in range(1, 6):
        with Echo(me, number=number) as peer:
            me.send(number, [b"hello"], False)
            next_event(me)
            peer.process.kill()
            assert next_event(me)[:2] == ("lost", number)
    until = time.monotonic() + TIMEOUT
    while len(open_files()) > files:
        assert me.receive(0.05) is None
        assert time.monotonic() < until, open_files()
    me.close(0)


def test_a_rejected_peer_is_lost_then_found() -> None:
    me, peer = pair()
    me.send(1, [b"hello"], False)
    next_event(peer, me)

    peer.reject(0, "nonsense")

    seen = events_of(me, peer, count=4)

    assert seen[0][0][3] == "it has closed the connection: nonsense"
    assert seen[1][0][3] == "rejected: nonsense"
    assert [[event[0] for event in events] for events in seen] == [
        ["lost", "found"],
        ["lost", "found"],
    ]
    me.send(1, [b"again"], False)
    assert next_event(peer, me)[2] == [b"again"]
    for worker in (me, peer):
        worker.close(1)


@pytest.mark.parametrize("media", ["shm", "tcp"])
@pytest.mark.parametrize("length", [30, 40, 400])
def test_a_rejected_peer_is_told_a_reason_of_any_length(media: str, length: int) -> None:
    """UCX sends only short messages at once while it still sets up the connection in both directions."""
    me, peer = pair(trusted=media == "tcp")
    me.send(1, [b"hello"], False)
    next_event(peer, me)
    reason = "x" * length

    peer.reject(0, reason)

    seen = events_of(me, peer, count=4)
    assert seen[0][0][::3] == ("lost", f"it has closed the connection: {reason}")
    assert [[event[0] for event in events] for events in seen] == [
        ["lost", "found"],
        ["lost", "found"],
    ]
    for worker in (me, peer):
        worker.close(1)


def test_a_rejected_peer_that_has_answered_connects_again() -> None:
    """UCX watches its shared memory again after the last connection over it has ended."""
    me, peer = pair()
    me.send(1, [b"hello"], False)
    next_event(peer, me)
    peer.send(0, [b"hi"], True)
    next_event(me, peer)
    peer.reject(0, "nonsense")
    events_of(me, peer, count=4)

    me.send(1, [b"again"], False)

    assert next_event(peer, me)[2] == [b"again"]
    for worker in (me, peer):
        worker.close(1)


def test_a_too_large_message_ends_the_connection() -> None:
    """In this test the sender does not know the limit. Workers of a group publish it."""
    me, peer = transport(0), transport(1, max_message=1000)
    learn(me, 0, 1, peer.address())
    learn(peer, 1, 0, me.address())

    me.send(1, [bytes(10_000)], False)

    seen = events_of(me, peer, count=2)

    for (event,) in seen:
        assert event[0] == "lost"
        assert "larger than the 1000-byte limit" in event[3]
    for worker in (me, peer):
        worker.close(1)


@pytest.mark.parametrize("size", [1, 5000, 2 << 20])
def test_a_part_on_a_device_is_refused_where_no_device_is_used(size: int) -> None:
    """Only the connection ends: the next message arrives."""
    me, peer = transport(0, device_memory={"late": "host"}), transport(1)
    learn(me, 0, 1, peer.address())
    learn(peer, 1, 0, me.address())
    me.send(1, [bytes(size)], False, device="late")
    (lost, back), refused = events_of(me, peer, count=4)
    assert (lost[0], back[0], refused[0][0]) == ("lost", "found", "lost")
    assert "this worker has no device maps" in lost[3]
    me.send(1, [b"next"], False)
    while (event := next_event(peer))[0] != "message":
        pass
    assert event[2] == [b"next"]
    for worker in (me, peer):
        worker.close(1)


def test_a_process_without_proof_gets_nothing_through() -> None:
    lines: list[str] = []
    asked: list[bytes] = []
    stranger = transport(0)
    peer = transport(
        1,
        on_unknown_proof=lambda key, _waited: asked.append(key),
        on_refused=lines.append,
    )
    learn(stranger, 0, 1, peer.address())

    stranger.send(1, [b"run this"], False)
    until = time.monotonic() + 30
    while not lines and time.monotonic() < until:
        assert peer.receive(0.02) is None
        assert stranger.receive(0) is None

    assert asked == [proof(0, 1)]
    assert "without the proof that it belongs to this group" in lines[0]
    assert peer.metrics()["ucx.messages_received"] == "0"
    assert peer.metrics()["ucx.refused"] == "1"
    for worker in (stranger, peer):
        worker.close(0)


def test_an_early_greeting_is_answered_later() -> None:
    me = transport(0)
    later: list[object] = []

    def join(_key: bytes, _waited: float) -> int:
        learn(peer, 1, 0, me.address())
        later.append(None)
        return 0

    peer = transport(1, on_unknown_proof=join)
    learn(me, 0, 1, peer.address())

    me.send(1, [b"early"], False)

    assert next_event(peer, me)[2] == [b"early"]
    assert len(later) == 1
    for worker in (me, peer):
        worker.close(1)


def test_a_silent_peer_is_lost_after_the_timeout() -> None:
    me, peer = transport(0, handshake_timeout=0.2), transport(1)
    learn(me, 0, 1, peer.address())
    begun = time.monotonic()

    me.send(1, [b"hello"], False)

    assert next_event(me)[3] == "it has not answered"
    assert time.monotonic() - begun >= 0.2
    for worker in (me, peer):
        worker.close(0)


@pytest.mark.parametrize("media", ["shm", "tcp"])
def test_an_idle_worker_uses_no_processor_time(media: str) -> None:
    me = transport(0, trusted=media == "tcp")
    with Echo(me, media=media) as peer:
        me.send(1, [b"hello"], False)
        next_event(me)
        peer_before = processor_time(peer.process.pid)
        before = time.process_time()

        assert me.receive(2) is None

        assert time.process_time() - before < 0.05
        assert processor_time(peer.process.pid) - peer_before < 0.05
        me.close(1)


def test_shared_memory_is_private_and_unlinked() -> None:
    """So a killed worker leaves nothing behind, and no other user can open its memory."""
    me = transport(0)
    links = [path for path in Path("/proc/self/fd").iterdir() if is_shared_memory(path)]

    assert links
    for link in links:
        assert str(link.readlink()).endswith(" (deleted)")
        assert stat.S_IMODE(link.stat().st_mode) & 0o077 == 0
    assert listening_sockets() == set()
    me.close(0)


def test_a_closed_transport_says_so() -> None:
    me, peer = pair()
    for worker in (me, peer, me):
        worker.close(0)

    assert me.receive(5) is None
    with pytest.raises(RuntimeError, match="the transport is closed"):
        me.send(1, [b"hello"], False)


def test_ucx_has_settings_and_transports_here() -> None:
    assert {"TLS", "RNDV_THRESH", "NET_DEVICES", "CMA_BW"} <= native().setting_names()
    assert "posix/memory" in native().resources([("TLS", "all")])


# --- helpers ---------------------------------------------------------------------------------------


def processor_time(pid: int) -> float:
    """Return the processor time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def open_files() -> list[Path]:
    return list(Path("/proc/self/fd").iterdir())


def is_shared_memory(link: Path) -> bool:
    try:
        return str(link.readlink()).startswith("/dev/shm/ucx_")
    except OSError:
        return False


def listening_sockets() -> set[str]:
    """Return the TCP sockets on which this process listens."""
    inodes = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    listening = "0A"
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == listening and fields[9] in inodes:
                addresses.add(fields[1])
    return addresses
