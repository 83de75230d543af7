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

#: Time limit in seconds for steps that take a moment; a passing test never waits that long.
TIME_LIMIT = 60.0

Event = tuple[str, int, list[memoryview], str]


class Worker:
    """A transport, with the data that peers need to reach it.

    :ivar lines: the log lines about refused connections.
    """

    def __init__(self, worker_id: int, *, encrypted: bool, **settings: Any) -> None:
        self.id = worker_id
        self.lines: list[str] = []
        self.logged = threading.Condition()
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
                "on_refused": self._log,
                **settings,
            }
        )
        self.endpoint = ""

    def _log(self, line: str) -> None:
        with self.logged:
            self.lines.append(line)
            self.logged.notify_all()

    def log_line(self, text: str) -> str:
        """Wait for a log line that contains a text, and return it."""

        def found() -> str | None:
            return next((line for line in self.lines if text in line), None)

        with self.logged:
            assert self.logged.wait_for(found, TIME_LIMIT), self.lines
            return found() or ""

    def listen(self, endpoint: str) -> Worker:
        """Listen, and keep the endpoint for peers."""
        (self.endpoint,) = self.transport.bind([endpoint])
        self.transport.start(self.id)
        return self

    def learn(self, *others: Worker) -> Worker:
        """Make the other workers known to this one."""
        for other in others:
            self.transport.learn(other.id, other.endpoint, other.key)
        return self

    def send(self, peer: int, *parts: bytes, reply: bool = False) -> None:
        """Send a message."""
        self.transport.send(peer, list(parts), reply)

    def try_to_send(self, peer: int, *parts: bytes) -> None:
        """Send a first message, which connects to the peer; the peer may be lost before it is sent."""
        with contextlib.suppress(TransportError):
            self.send(peer, *parts)

    def next(self, what: str | None = None) -> Event:
        """Return the next event, which must be of this kind if one is given."""
        event = self.transport.receive(TIME_LIMIT)
        assert event is not None, f"worker {self.id} waited for {what or 'anything'}"
        assert what is None or event[0] == what, event[:2] + event[3:]
        return event

    def message(self) -> tuple[int, list[bytes]]:
        """Return the next event, which must be a message: its sender and its parts."""
        _, peer, parts, _ = self.next("message")
        return peer, [bytes(part) for part in parts]

    def lost(self) -> str:
        """Return the reason of the next event, which must be a lost peer."""
        return self.next("lost")[3]

    def metric(self, name: str) -> int:
        """Return a counter of the metrics."""
        return int(self.transport.metrics()[f"zeromq.{name}"])


class Child:
    """A process that runs a program with workers of its own.

    :param code: its program; ``say(value)`` and ``hear()`` communicate with the test.
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
        assert line, f"the process has ended: {self.process.wait(TIME_LIMIT)}"
        return json.loads(line)

    def say(self, value: Any) -> None:
        """Write a line to its input."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def end(self) -> int:
        """Wait until it ends, and return its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(TIME_LIMIT)

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
        except OSError:  # the descriptor that lists the folder
            continue
    return found


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition that no event reports, by polling."""
    until = time.monotonic() + TIME_LIMIT
    while not condition():
        assert time.monotonic() < until, f"never: {what}"
        time.sleep(0.01)
