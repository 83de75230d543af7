"""Workers for the tests of the transport in C++: in the process of the test, and in others."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import zmq

from rpc_backend_zeromq._native import Transport, TransportError

#: Seconds that something may take that takes a moment. Nothing waits for it that goes well.
PATIENCE = 60.0

Event = tuple[str, int, list[memoryview], str]


class Worker:
    """A transport, and the data that peers need to reach it.

    :ivar lines: what it has said of those it refused.
    """

    def __init__(self, worker_id: int, *, encrypted: bool, **settings: Any) -> None:
        self.id = worker_id
        self.lines: list[str] = []
        self.told = threading.Condition()
        public, secret = zmq.curve_keypair() if encrypted else (None, None)
        self.key: bytes | None = public
        self.secret: bytes | None = secret
        self.transport = Transport(
            **{
                "public_key": public,
                "secret_key": secret,
                "max_message": 1 << 30,
                "heartbeat": 1,
                "heartbeat_timeout": 20,
                "handshake_timeout": 20,
                "on_refused": self._hear,
                **settings,
            }
        )
        self.endpoint = ""

    def _hear(self, line: str) -> None:
        with self.told:
            self.lines.append(line)
            self.told.notify_all()

    def line_with(self, text: str) -> str:
        """Wait for a log line about a refused connection."""

        def found() -> str | None:
            return next((line for line in self.lines if text in line), None)

        with self.told:
            assert self.told.wait_for(found, PATIENCE), self.lines
            return found() or ""

    def listen(self, endpoint: str) -> Worker:
        """Listen, and keep the endpoint for peers."""
        (self.endpoint,) = self.transport.bind([endpoint])
        self.transport.start(self.id)
        return self

    def learn(self, *others: Worker) -> Worker:
        """Learn other workers."""
        for other in others:
            self.transport.learn(other.id, other.endpoint, other.key)
        return self

    def send(self, peer: int, *parts: bytes, reply: bool = False) -> None:
        """Send a message."""
        self.transport.send(peer, list(parts), reply)

    def try_to_send(self, peer: int, *parts: bytes) -> None:
        """Send a message to a peer that may be lost before it is sent: the first one connects to it."""
        with contextlib.suppress(TransportError):
            self.send(peer, *parts)

    def next(self, what: str | None = None) -> Event:
        """Return the next event, which must be one of these."""
        event = self.transport.receive(PATIENCE)
        assert event is not None, f"worker {self.id} waited for {what or 'anything'}"
        assert what is None or event[0] == what, event[:2] + event[3:]
        return event

    def message(self) -> tuple[int, list[bytes]]:
        """Return the next event, a message: from whom, and its parts."""
        _, peer, parts, _ = self.next("message")
        return peer, [bytes(part) for part in parts]

    def lost(self) -> str:
        """Return the reason of the next event, which must be a lost peer."""
        return self.next("lost")[3]

    def metric(self, name: str) -> int:
        """Return a counter of the metrics."""
        return int(self.transport.metrics()[f"zeromq.{name}"])


class Child:
    """A process with its own worker, ``worker``, that runs commands.

    :param code: what it runs; ``say(value)`` and ``hear()`` speak with the test.
    """

    def __init__(self, code: str, *arguments: Any) -> None:
        prelude = f"""
            import json, os, sys, threading, time
            sys.path.insert(0, {str(Path(__file__).parent)!r})
            from native_workers import Worker
            def say(value): print(json.dumps(value), flush=True)
            def hear(): return json.loads(sys.stdin.readline())
            arguments = json.loads(sys.argv[1])
        """
        self.process = subprocess.Popen(
            [sys.executable, "-c", dedent(prelude) + dedent(code), json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> Any:
        """Return the next line of its output."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process has ended: {self.process.wait(PATIENCE)}"
        return json.loads(line)

    def say(self, value: Any) -> None:
        """Send it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def end(self) -> int:
        """Wait until it ends, and return its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        """Kill it if it still runs."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def open_files() -> dict[str, str]:
    """Return the files that this process has open."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[entry.name] = str(entry.readlink())
        except OSError:  # the folder itself
            continue
    return found


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Poll until a condition without a notification holds."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, f"never: {what}"
        time.sleep(0.01)
