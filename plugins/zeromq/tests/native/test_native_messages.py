"""Messages of any size arrive unchanged over each medium, encrypted or not, and many at once."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from native_workers import Worker, eventually

from rpc_backend_zeromq._native import TransportError

MakeWorker = Callable[..., Worker]

# Sizes around those of shared blocks, of records of TLS, and of reads.
SIZES = [
    0,
    1,
    15,
    16,
    17,
    4095,
    4096,
    4097,
    (16 << 10) - 1,
    16 << 10,
    (16 << 10) + 1,
    (128 << 10) - 1,
    128 << 10,
    (128 << 10) + 1,
    (1 << 20) - 1,
    1 << 20,
    (1 << 20) + 1,
]
SIZES += [(2 << 20) + 7, (5 << 20) + 3]


@pytest.mark.parametrize("medium", ["tcp", "tcp6", "ipc"])
def test_a_request_and_its_reply_arrive(
    make: MakeWorker, encrypted: bool, where: Callable[[str], str], medium: str
) -> None:
    worker0, worker1 = (make(n, encrypted).listen(where(medium)) for n in (0, 1))
    worker0.learn(worker1)
    worker1.learn(worker0)
    worker0.send(1, b"head", b"tail")
    assert worker1.message() == (0, [b"head", b"tail"])
    worker1.send(0, b"reply", reply=True)
    assert worker0.message() == (1, [b"reply"])
    # The other direction has a connection of its own.
    worker1.send(0, b"request")
    assert worker0.message() == (1, [b"request"])


@pytest.mark.parametrize("medium", ["tcp", "ipc"])
def test_bind_returns_the_actual_endpoint(
    make: MakeWorker, where: Callable[[str], str], medium: str
) -> None:
    worker = make(0).listen(where(medium))
    assert worker.endpoint.startswith({"tcp": "tcp://127.0.0.1:", "ipc": "ipc:///"}[medium])
    assert not worker.endpoint.endswith("*")


def test_a_worker_can_call_itself(make: MakeWorker, encrypted: bool) -> None:
    worker = make(0, encrypted).listen("tcp://127.0.0.1:*")
    worker.learn(worker)
    worker.send(0, b"x")
    assert worker.message() == (0, [b"x"])
    worker.send(0, b"y", reply=True)
    assert worker.message() == (0, [b"y"])


def test_parts_of_all_sizes_arrive_unchanged(pair: tuple[Worker, Worker]) -> None:
    worker0, worker1 = pair
    parts = [os.urandom(size) for size in SIZES]
    worker0.send(1, *parts)
    _, peer, received, _ = worker1.next("message")
    assert peer == 0
    assert [bytes(part) for part in received] == parts
    worker1.send(0, *reversed(parts), reply=True)
    assert worker0.message() == (1, list(reversed(parts)))


def test_small_parts_may_exceed_one_read(pair: tuple[Worker, Worker]) -> None:
    """Together, the parts and the list of their sizes take several MiB."""
    worker0, worker1 = pair
    parts = [bytes([number % 256]) * (number % 4000) for number in range(2000)]
    worker0.send(1, *parts)
    assert worker1.message() == (0, parts)


def test_messages_may_have_no_or_empty_parts(pair: tuple[Worker, Worker]) -> None:
    worker0, worker1 = pair
    for parts in ([], [b""], [b"", b"", b"x", b""]):
        worker0.send(1, *parts)
        assert worker1.message() == (0, parts)


def test_received_parts_are_aligned_for_tensors(
    pair: tuple[Worker, Worker],
) -> None:
    import numpy

    worker0, worker1 = pair
    worker0.send(1, b"small", b"x" * (3 << 20), b"odd", b"y" * 5000)
    _, _, parts, _ = worker1.next("message")
    addresses = [numpy.frombuffer(part, dtype=numpy.uint8).ctypes.data for part in parts]
    assert [address % 16 for address in addresses] == [0, 0, 0, 0]


def test_a_message_of_64_mib_arrives_between_others(pair: tuple[Worker, Worker]) -> None:
    worker0, worker1 = pair
    large = os.urandom(64 << 20)
    worker0.send(1, b"before", large, b"after")
    worker0.send(1, b"next")
    messages = sorted((worker1.message() for _ in range(2)), key=lambda message: len(message[1]))
    assert messages[0] == (0, [b"next"])
    peer, parts = messages[1]
    assert (peer, [len(part) for part in parts]) == (0, [6, 64 << 20, 5])
    assert hashlib.sha256(parts[1]).digest() == hashlib.sha256(large).digest()


def test_memory_is_reused_once_it_is_released(pair: tuple[Worker, Worker]) -> None:
    import numpy

    worker0, worker1 = pair
    sent = [os.urandom((5 << 20) + number) for number in (3, 2, 1)]
    arrived = []
    addresses = []
    for number, large in enumerate(sent):
        worker0.send(1, large)
        _, _, (part,), _ = worker1.next("message")
        addresses.append(numpy.frombuffer(part, dtype=numpy.uint8).ctypes.data)
        arrived.append(bytes(part) if number == 0 else part)
        del part
    assert [bytes(part) for part in arrived] == sent
    assert addresses[0] == addresses[1] != addresses[2]


def test_the_memory_of_sent_messages_is_released(pair: tuple[Worker, Worker]) -> None:
    worker0, worker1 = pair
    large = bytearray(3 << 20)
    worker0.transport.send(1, [large], False)
    worker1.message()
    worker1.send(0, b"done", reply=True)
    worker0.message()

    def is_released() -> bool:
        try:
            large.append(0)
        except BufferError:  # the transport still uses its memory
            return False
        return True

    eventually(is_released, "the memory is released")


def test_received_parts_outlive_the_transport(pair: tuple[Worker, Worker]) -> None:
    worker0, worker1 = pair
    parts = [os.urandom(size) for size in SIZES]
    worker0.send(1, *parts)
    _, _, received, _ = worker1.next("message")
    worker1.transport.close(0)
    worker0.transport.close(0)
    assert [bytes(part) for part in received] == parts


def test_an_oversized_message_is_refused_by_its_sender(make: MakeWorker) -> None:
    worker0, worker1 = (make(n, max_message=1000).listen("tcp://127.0.0.1:*") for n in (0, 1))
    worker0.learn(worker1)
    worker1.learn(worker0)
    worker0.send(1, b"x" * 999, b"y")
    assert worker1.message()[0] == 0
    with pytest.raises(TransportError, match="1001 bytes is larger than the 1000"):
        worker0.send(1, b"x" * 1000, b"y")
    with pytest.raises(TransportError, match="65537 parts"):
        worker0.send(1, *[b""] * 65537)
    worker0.send(1, *[b""] * 65536)
    assert len(worker1.message()[1]) == 65536


@pytest.mark.parametrize("receivers", [1, 4])
def test_messages_of_many_senders_arrive_once(
    make: MakeWorker, encrypted: bool, receivers: int
) -> None:
    """Each message arrives once; a single receiver gets the small ones of each thread in order."""
    senders, threads, count = 3, 3, 300
    target = make(0, encrypted).listen("tcp://127.0.0.1:*")
    others = [make(n, encrypted).listen("tcp://127.0.0.1:*") for n in range(1, senders + 1)]
    target.learn(*others)
    received: list[list[tuple[int, int, int]]] = [[] for _ in range(receivers)]
    left = threading.Semaphore(0)

    def send(worker: Worker, thread: int) -> None:
        worker.learn(target)
        for number in range(count):
            # Few bytes, some records of TLS, and more than one read takes.
            size = (2 << 20) if number % 100 == 50 else 10_000 if number % 10 == 5 else 10
            worker.send(0, f"{thread} {number}".encode(), b"x" * size)

    def receive(messages: list[tuple[int, int, int]]) -> None:
        while (event := target.transport.receive()) is not None:
            thread, number = bytes(event[2][0]).split()
            messages.append((event[1], int(thread), int(number)))
            left.release()

    running = [
        threading.Thread(target=send, args=(worker, thread))
        for worker in others
        for thread in range(threads)
    ]
    running += [threading.Thread(target=receive, args=(messages,)) for messages in received]
    for started in running:
        started.start()
    for _ in range(senders * threads * count):
        assert left.acquire(timeout=60)
    target.transport.close(0)
    for started in running:
        started.join()
    everything = Counter(message for messages in received for message in messages)
    assert len(everything) == senders * threads * count
    assert set(everything.values()) == {1}
    if receivers == 1:
        for worker in range(1, senders + 1):
            for thread in range(threads):
                numbers = [
                    n for w, t, n in received[0] if (w, t) == (worker, thread) and n % 100 != 50
                ]
                assert numbers == sorted(numbers)


def test_replies_from_many_threads_reach_their_caller(pair: tuple[Worker, Worker]) -> None:
    """Threads on both sides return a thousand messages to each other, five times."""
    worker0, worker1 = pair
    count, rounds = 1000, 5
    done = threading.Semaphore(0)

    def serve() -> None:
        while (event := worker1.transport.receive()) is not None:
            worker1.transport.send(0, event[2], True)

    def call() -> None:
        while (event := worker0.transport.receive()) is not None:
            number, left = map(int, bytes(event[2][0]).split())
            if left:
                worker0.send(1, f"{number} {left - 1}".encode())
            else:
                done.release()

    threads = [threading.Thread(target=target) for target in (serve, serve, serve, call, call)]
    for thread in threads:
        thread.start()
    for number in range(count):
        worker0.send(1, f"{number} {rounds}".encode())
    for _ in range(count):
        assert done.acquire(timeout=60)
    worker0.transport.close(0)
    worker1.transport.close(0)
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("medium", ["tcp", "ipc"])
def test_a_message_over_the_peers_limit_is_an_error(
    make: MakeWorker, where: Callable[[str], str], medium: str
) -> None:
    worker0 = make(0).listen(where(medium))
    worker1 = make(1, max_message=1000).listen(where(medium)).learn(worker0)
    worker0.transport.learn(1, worker1.endpoint, None, None, 1000)
    worker1.send(0, b"x")
    worker0.message()

    for reply in (False, True):
        with pytest.raises(
            TransportError, match=r"1001 bytes is larger than the 1000 that worker 1 takes"
        ):
            worker0.send(1, bytes(1001), reply=reply)
        worker0.send(1, bytes(1000), reply=reply)
        assert worker1.message() == (0, [bytes(1000)])
    assert worker0.metric("peers_lost") == worker1.metric("peers_lost") == 0


def mapping_flags(data: memoryview) -> list[str]:
    """Return the kernel's flags of the memory that holds the data."""
    address = np.frombuffer(data, np.uint8).ctypes.data
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            begin, end = (int(each, 16) for each in match.groups())
            inside = begin <= address < end
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError("the memory is not mapped")


@pytest.mark.parametrize(("mib", "huge"), [(4, True), (64, False)])
def test_only_memory_for_frequent_use_has_huge_pages(
    make: MakeWorker, where: Callable[[str], str], mib: int, huge: bool
) -> None:
    """A very large message is received once, and huge pages may take long to get ready."""
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this kernel has no transparent huge pages")
    worker0, worker1 = (make(n).listen(where("ipc")) for n in (0, 1))
    worker0.learn(worker1)
    worker0.send(1, bytes(mib << 20))
    _, _, (part,), _ = worker1.next("message")
    assert ("hg" in mapping_flags(part)) is huge
