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

#: The start of TLS: a record with a message of 196 bytes.
HELLO = bytes.fromhex("16030100c8010000c40303")
GARBAGE = {
    "nothing": b"",
    "one byte": b"\xff",
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "an invalid hello": HELLO + os.urandom(189),
    "zeros": bytes(100_000),
    "ones": b"\xff" * 100_000,
    "random bytes": os.urandom(100_000),
    "half a hello": HELLO + os.urandom(90),
    "a hello, then random bytes": HELLO + os.urandom(100_000),
    "a greeting without encryption": b"RPCZMQ\x00\x03" + bytes(48),
    "half a greeting": b"RPCZMQ",
    "a record of 64 KiB": b"\x16\x03\x03\xff\xff" + bytes(100),
    "a message of 16 MiB": b"\x16\x03\x03\x40\x00\x01\xff\xff\xff" + bytes(100),
    "ZeroMQ": b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(47),
}  # fmt: skip
#: Connections that are open at the same time.
IDLE_CONNECTIONS = 600


def listening_ports(pid: int) -> list[tuple[str, int]]:
    """Return the TCP addresses on which a process listens, as the kernel reports them."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(entry.readlink().name.removeprefix("socket:[").removesuffix("]"))
    ports = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:  # TCP_LISTEN
                any_or_loopback = "127.0.0.1" if family == socket.AF_INET else "::1"
                ports.append((any_or_loopback, int(fields[1].rpartition(":")[2], 16)))
    return ports


def send_garbage(address: tuple[str, int], garbage: bytes) -> socket.socket:
    """Send garbage without waiting for anything, and return the connection."""
    connection = socket.create_connection(address, timeout=30)
    connection.setblocking(False)
    with contextlib.suppress(OSError):  # the worker may have closed it, or may not read
        connection.send(garbage)
    return connection


def call_until_stopped(me: WorkerContext, to: str) -> None:
    """Call a worker until the stop file exists, and once more."""
    me.tell("calling")
    stopped = False
    while not stopped:
        stopped = Path(me.memory["stop"]).exists()
        assert steps.call(me, to).split()[0] == to


def set_stop_file(me: WorkerContext, path: str) -> None:
    """Set the file at which `call_until_stopped` ends."""
    me.memory["stop"] = path


def limit_files(me: WorkerContext, number: int) -> None:
    """Limit the number of files that this process may open."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))


def log_warnings(me: WorkerContext) -> None:
    """Write warnings to the output, where the test can read them."""
    import logging

    logging.basicConfig(level=logging.WARNING)


@pytest.mark.parametrize("kind", ["file", "tcp"])
def test_garbage_at_all_ports_disturbs_no_call(kind: str, text: str, tmp_path: Path) -> None:
    """The ports are those of the transport and, if worker0 hosts it, of torch's store."""
    with meeting(kind, tmp_path) as where, Workers(2, seconds=120) as workers:
        send_garbage_during_calls(workers, where, text, tmp_path)


def send_garbage_during_calls(workers: Workers, where: Meeting, text: str, tmp_path: Path) -> None:
    workers.run(log_warnings)
    workers.run(join, where.url, secret=text, unix_sockets=False)
    workers.run(set_stop_file, str(tmp_path / "stop"))
    ports = {port for worker in workers for port in listening_ports(worker.pid)}
    assert len(ports) == (3 if where.kind == "tcp" else 2)
    calling = workers[1].start(call_until_stopped, "worker0")
    assert calling.news() == "calling"
    with contextlib.ExitStack() as open_connections:
        for address in sorted(ports):
            for number in range(3):
                for garbage in GARBAGE.values():
                    connection = send_garbage(address, garbage)
                    if number:
                        open_connections.enter_context(connection)
                    else:
                        connection.close()
        (tmp_path / "stop").touch()
        calling.result()  # it raises if a call failed
        for me, peer in ((0, 1), (1, 0)):
            workers[me].call(exercise, f"worker{peer}")
        for worker in workers:
            logged_line(worker, "refused a connection: a connection to tcp://127.0.0.1")
            assert worker.call(metric, "transport.zeromq.failed_handshakes") > 0
            assert worker.call(metric, "agent.bad_frames") == 0  # no garbage got past the handshake
    workers.run(steps.leave)


def test_many_idle_connections_disturb_no_call(text: str, tmp_path: Path) -> None:
    with Workers(2, seconds=120) as workers, contextlib.ExitStack() as open_connections:
        workers.run(join, f"file://{tmp_path}/store", secret=text, unix_sockets=False)
        (address,) = listening_ports(workers[0].pid)
        for _ in range(IDLE_CONNECTIONS):
            open_connections.enter_context(send_garbage(address, b""))
        for me, peer in ((0, 1), (1, 0)):
            workers[me].call(exercise, f"worker{peer}")
        workers.run(steps.leave)


def test_idle_connections_leave_descriptors_for_peers(text: str, tmp_path: Path) -> None:
    with Workers(2, seconds=120) as workers:
        workers[0].call(limit_files, 100)
        workers.run(join, f"file://{tmp_path}/store", secret=text, unix_sockets=False)
        workers[0].call(exercise, "worker1")
        (address,) = listening_ports(workers[0].pid)
        with contextlib.ExitStack() as open_connections:
            for _ in range(200):
                open_connections.enter_context(send_garbage(address, b""))
            eventually(
                lambda: len(list(Path(f"/proc/{workers[0].pid}/fd").iterdir())) < 100 - 16,
                lambda: "worker0 can open files",
            )
            workers[0].call(exercise, "worker1")
            eventually(lambda: can_call(workers), lambda: "worker1 can call worker0")
        workers.run(steps.leave)


def can_call(workers: Workers) -> bool:
    return bool(workers[1].call(call_gets_through, "worker0"))


def call_gets_through(me: WorkerContext, to: str) -> bool:
    """Return whether a call gets through."""
    try:
        steps.call(me, to, timeout=5)
    except RuntimeError:
        return False
    return True
