"""A group continues to work whatever data arrives at a worker's ports."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from pathlib import Path

import pytest

from support import steps
from support.steps import Meeting, meeting
from support.workers import WorkerContext, Workers
from support.zeromq import eventually, exercise, join, logged_line, metric

pytestmark = pytest.mark.slow

#: What a peer of ZeroMQ begins with.
GREETING = b"\xff" + bytes(8) + b"\x7f"
VERSION_3 = GREETING + b"\x03\x01"
CURVE = VERSION_3 + b"CURVE" + bytes(47)
GARBAGE = {
    "nothing": b"",
    "one byte": b"\xff",
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + os.urandom(189),
    "zeros": bytes(100_000),
    "ones": b"\xff" * 100_000,
    "random bytes": os.urandom(100_000),
    "half a greeting": GREETING,
    "a greeting, then silence": CURVE,
    "a greeting, then random bytes": CURVE + os.urandom(100_000),
    "a greeting of no encryption": VERSION_3 + b"NULL" + bytes(48) + b"\x04\x19\x05READY" + bytes(19),
    "a frame of 2**63 bytes": CURVE + b"\x06\xff" + b"\x7f" * 8 + bytes(99),
    "a command of 4 GiB": CURVE + b"\x06" + bytes(4) + b"\xff" * 4 + b"\x05HELLO",
    "half a HELLO": CURVE + b"\x04\xc8\x05HELLO\x01\x00" + os.urandom(90),
    "a HELLO that is none": CURVE + b"\x04\xc8\x05HELLO\x01\x00" + os.urandom(192),
}  # fmt: skip
#: Connections that are made and held all at the same time.
CROWD = 600


def listening_ports(pid: int) -> list[tuple[str, int]]:
    """Return the TCP addresses on which a process listens, as the kernel reports them."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(entry.readlink().name.removeprefix("socket:[").removesuffix("]"))
    found = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:  # TCP_LISTEN
                any_or_loopback = "127.0.0.1" if family == socket.AF_INET else "::1"
                found.append((any_or_loopback, int(fields[1].rpartition(":")[2], 16)))
    return found


def throw(address: tuple[str, int], garbage: bytes) -> socket.socket:
    """Send garbage without waiting for anything, and return the connection."""
    guest = socket.create_connection(address, timeout=30)
    guest.setblocking(False)
    with contextlib.suppress(OSError):  # whoever is there may have had enough, or not read it
        guest.send(garbage)
    return guest


def pace_calls(me: WorkerContext, to: str) -> int:
    """Call a worker until told to stop, and return the number of calls; each must succeed."""
    me.tell("calling")
    calls = 0
    while not Path(me.memory["stop"]).exists():
        assert steps.call(me, to).split()[0] == to
        calls += 1
    return calls


def stop_when(me: WorkerContext, path: str) -> None:
    me.memory["stop"] = path


def limit_files(me: WorkerContext, number: int) -> None:
    """Limit the number of files that this process may open."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))


def warn(me: WorkerContext) -> None:
    import logging

    logging.basicConfig(level=logging.WARNING)


@pytest.mark.parametrize("kind", ["file", "tcp"])
def test_garbage_at_every_port_of_a_worker_harms_nobody(
    kind: str, text: str, tmp_path: Path
) -> None:
    """The ports are the transport's and, if worker0 hosts it, that of torch's store."""
    with meeting(kind, tmp_path) as where, Workers(2, seconds=120) as workers:
        run(workers, where, text, tmp_path)


def run(workers: Workers, where: Meeting, text: str, tmp_path: Path) -> None:
    workers.run(warn)
    workers.run(join, where.url, secret=text, unix_sockets=False)
    workers.run(stop_when, str(tmp_path / "stop"))
    ports = {port for worker in workers for port in listening_ports(worker.pid)}
    assert len(ports) == (3 if where.kind == "tcp" else 2)
    calling = workers[1].start(pace_calls, "worker0")
    assert calling.news() == "calling"
    with contextlib.ExitStack() as held:
        for address in sorted(ports):
            for number in range(3):
                for garbage in GARBAGE.values():
                    guest = throw(address, garbage)
                    if number:
                        held.enter_context(guest)
                    else:
                        guest.close()
        (tmp_path / "stop").touch()
        assert calling.result() > 0
        for me, other in ((0, 1), (1, 0)):
            workers[me].call(exercise, f"worker{other}")
        for worker in workers:
            logged_line(worker, "refused a connection: a connection to tcp://127.0.0.1")
            assert worker.call(metric, "transport.zeromq.failed_handshakes") > 0
            assert worker.call(metric, "agent.bad_frames") == 0  # nothing came so far
    workers.run(steps.leave)


def test_a_crowd_that_connects_and_says_nothing_keeps_no_worker_from_its_calls(
    text: str, tmp_path: Path
) -> None:
    with Workers(2, seconds=120) as workers, contextlib.ExitStack() as held:
        workers.run(join, f"file://{tmp_path}/store", secret=text, unix_sockets=False)
        (address,) = listening_ports(workers[0].pid)
        for _ in range(CROWD):
            held.enter_context(throw(address, b""))
        for me, other in ((0, 1), (1, 0)):
            workers[me].call(exercise, f"worker{other}")
        workers.run(steps.leave)


def test_a_crowd_leaves_a_worker_with_few_files_enough_for_its_peers(
    text: str, tmp_path: Path
) -> None:
    with Workers(2, seconds=120) as workers:
        workers[0].call(limit_files, 100)
        workers.run(join, f"file://{tmp_path}/store", secret=text, unix_sockets=False)
        workers[0].call(exercise, "worker1")
        (address,) = listening_ports(workers[0].pid)
        with contextlib.ExitStack() as held:
            for _ in range(200):
                held.enter_context(throw(address, b""))
            eventually(
                lambda: len(list(Path(f"/proc/{workers[0].pid}/fd").iterdir())) < 100 - 16,
                lambda: "worker0 can open files",
            )
            workers[0].call(exercise, "worker1")
            eventually(lambda: can_call(workers), lambda: "worker1 gets through to worker0")
        workers.run(steps.leave)


def can_call(workers: Workers) -> bool:
    return bool(workers[1].call(try_call, "worker0"))


def try_call(me: WorkerContext, to: str) -> bool:
    """Return whether a call gets through."""
    try:
        steps.call(me, to, timeout=5)
    except RuntimeError:
        return False
    return True
