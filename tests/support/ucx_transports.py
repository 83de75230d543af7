"""Transports in C++ without agents, in the process of the test and in others."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rpc_backend_ucx import processes
from rpc_backend_ucx.library import native
from support.siphash import siphash

#: Time limit in seconds for steps that take a moment; a passing test never waits that long.
TIMEOUT = 60.0

#: With which the workers of these tests prove themselves on TCP connections.
CONNECTION_KEY = bytes(range(32))


Address = tuple[str, int]


def siphash_tag(purpose: str, connector: int, number: int, receiver: str, key: bytes) -> bytes:
    """Return the keyed hash of what a proof on a TCP connection says."""
    texts = [purpose.encode(), receiver.encode()]
    purposes, receivers = (struct.pack("<Q", len(text)) + text for text in texts)
    message = purposes + struct.pack("<QQ", connector, number) + receivers
    return b"".join(siphash(half, message).to_bytes(8, "little") for half in (key[:16], key[16:]))


def listeners(pid: int) -> list[Address]:
    """Return the IPv4 addresses on which a process listens."""
    inodes = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(str(path.readlink()))
    addresses = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            host, port = fields[1].split(":")
            addresses.append((socket.inet_ntoa(struct.pack("<I", int(host, 16))), int(port, 16)))
    return addresses


def proof(sender: int, receiver: int) -> bytes:
    """Return the proof with which one worker greets another."""
    return bytes([sender, receiver]) * 16


def worker_settings(*, trusted: bool) -> dict[str, Any]:
    """Return what C++ gets by default, for shared memory, or for TCP on a trusted network."""
    # This imports torch, which the processes that the tests start do not need.
    from rpc_backend_ucx.settings import settings_of

    environ = {"RPC_BACKENDS_UCX_TRUSTED_NETWORK": "1", "UCX_TLS": "tcp"} if trusted else {}
    settings = settings_of(None, environ)
    return {
        "config": settings.config(watches_processes=processes.can_watch()),
        **settings.native,
    }


def transport(
    worker: int, *, trusted: bool = False, key: bytes = CONNECTION_KEY, **settings: Any
) -> Any:
    """Make a transport and start it.

    :param trusted: use TCP, see :func:`worker_settings`; unless ``config`` is among the settings.
    :param key: with which the workers prove themselves on TCP connections.
    """
    if "config" not in settings:
        settings = {**worker_settings(trusted=trusted), **settings}
    made = native().Transport(**{"handshake_timeout": TIMEOUT, "rendezvous": 0, **settings})
    made.start(worker, key)
    return made


def learn(transport: Any, worker: int, peer: int, address: bytes, process: Any = (0, 0)) -> None:
    """Make the transport of a worker learn a peer."""
    transport.learn(peer, address, proof(worker, peer), proof(peer, worker), process)


def pair(**settings: Any) -> tuple[Any, Any]:
    """Return the transports of workers 0 and 1, which know each other."""
    two = transport(0, **settings), transport(1, **settings)
    learn(two[0], 0, 1, two[1].address())
    learn(two[1], 1, 0, two[0].address())
    return two


def next_event(*waiting: Any) -> tuple[str, int, list[memoryview], str]:
    """Return the next event of the first of these transports; the others receive, and must get none."""
    until = time.monotonic() + TIMEOUT
    while time.monotonic() < until:
        event = waiting[0].receive(0.01)
        if event is not None:
            return event
        for idle in waiting[1:]:
            assert idle.receive(0) is None
    raise AssertionError("no event")


def events_of(*transports: Any, count: int) -> list[list[tuple[str, int, list[memoryview], str]]]:
    """Return the first ``count`` events of these transports, a list for each transport."""
    events_by_transport: list[list[tuple[str, int, list[memoryview], str]]] = [
        [] for _ in transports
    ]
    until = time.monotonic() + TIMEOUT
    while sum(map(len, events_by_transport)) < count:
        assert time.monotonic() < until, events_by_transport
        for transport, events in zip(transports, events_by_transport, strict=True):
            event = transport.receive(0.01)
            if event is not None:
                events.append(event)
    return events_by_transport


_ECHO = """
import json, sys
sys.path.insert(0, sys.argv[1])
from support.ucx_transports import learn, transport
from rpc_backend_ucx.processes import this_process
number = int(sys.argv[3])
me = transport(number, **json.loads(sys.argv[2]))
mine = this_process()
print(me.address().hex(), mine.pid, mine.start, flush=True)
learn(me, number, 0, bytes.fromhex(sys.stdin.readline()))
print("ready", flush=True)
while True:
    event = me.receive(60)
    if event and event[0] == "message":
        me.send(0, event[2], True)
    elif event:
        print(event[0], event[3], flush=True)
"""


class Echo:
    """A worker in a process of its own, which sends back what it gets.

    :param me: the transport of worker 0.
    :param watched: whether worker 0 watches for the end of the process.
    :param number: its worker id.
    """

    def __init__(
        self, me: Any, *, media: str = "shm", watched: bool = True, number: int = 1
    ) -> None:
        here = str(Path(__file__).parents[1])
        settings = json.dumps(worker_settings(trusted=media == "tcp"))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _ECHO, here, settings, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin is not None
        address, pid, start = self.line().split()
        self.process.stdin.write(me.address().hex() + "\n")
        self.process.stdin.flush()
        assert self.line() == "ready"
        watch = (int(pid), int(start)) if watched else (0, 0)
        learn(me, 0, number, bytes.fromhex(address), watch)

    def line(self) -> str:
        """Return the next line that the process prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def __enter__(self) -> Echo:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
