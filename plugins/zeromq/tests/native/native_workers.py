"""Workers for the tests of the transport in C++: in the process of the test, and in others."""

from __future__ import annotations

import base64
import contextlib
import functools
import itertools
import json
import os
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

from rpc_backend_zeromq._native import Transport, TransportError, make_keys

#: Time limit in seconds for steps that take a moment; a passing test never waits that long.
TIME_LIMIT = 60.0

_DEFAULTS = "NATIVE_WORKERS_DEFAULTS"

Event = tuple[str, int, list[memoryview], str]


@functools.cache
def defaults() -> dict[str, Any]:
    """Return the options that C++ gets, with their defaults."""
    if _DEFAULTS in os.environ:
        given: dict[str, Any] = json.loads(os.environ[_DEFAULTS])
        return given
    # This imports torch, which the processes that the tests start do not need.
    from rpc_backend_zeromq import ZeroMQRpcBackendOptions

    return ZeroMQRpcBackendOptions().native()


def variables_of_child() -> dict[str, str]:
    """Return a variable for a process that makes workers, with which it imports no torch."""
    return {_DEFAULTS: json.dumps(defaults())}


class Worker:
    """A transport, with the data that peers need to reach it.

    :ivar lines: the log lines about refused connections.
    """

    def __init__(
        self, worker_id: int, *, encrypted: bool, fips: bool = False, **settings: Any
    ) -> None:
        self.id = worker_id
        self.lines: list[str] = []
        self.logged = threading.Condition()
        public, secret = make_keys(fips=fips) if encrypted else (None, None)
        self.key: bytes | None = public
        self.secret: bytes | None = secret
        self.transport = Transport(
            **{
                "public_key": public,
                "secret_key": secret,
                "fips": fips,
                **defaults(),
                "max_message": 1 << 30,
                "bulk_connections": 1,
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

        def matching() -> str | None:
            return next((line for line in self.lines if text in line), None)

        with self.logged:
            assert self.logged.wait_for(matching, TIME_LIMIT), self.lines
            return matching() or ""

    def listen(self, endpoint: str) -> Worker:
        """Listen, and keep the endpoint for peers."""
        (self.endpoint,) = self.transport.bind([endpoint])
        self.transport.start(self.id)
        return self

    def learn(self, *others: Worker) -> Worker:
        """Make the other workers known to this one."""
        for peer in others:
            self.transport.learn(peer.id, peer.endpoint, peer.key)
        return self

    def send(self, peer: int, *parts: bytes, reply: bool = False) -> None:
        """Send a message."""
        self.transport.send(peer, list(parts), reply)

    def try_to_send(self, peer: int, *parts: bytes, reply: bool = False) -> None:
        """Send a message, whose peer or connection may be lost before it is sent."""
        with contextlib.suppress(TransportError):
            self.send(peer, *parts, reply=reply)

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


# --- connections that are made by hand -----------------------------------------------------------

#: The first bytes of a greeting, and of an answer to it.
FORM = b"RPCZMQ\x00\x03"
#: The version of the message format.
VERSION = 3
#: Bytes of an answer, without the text of a refusal.
ANSWER_SIZE = 48


def greeting(
    worker: int,
    proof: bytes = b"",
    *,
    form: bytes = FORM,
    lane: int = 0,
    time_ns: int | None = None,
) -> bytes:
    """Return the greeting of a worker that connects.

    :param lane: the number of a connection for pieces of large messages.
    :param time_ns: the time of the first connection; None for now.
    """
    at = time.time_ns() if time_ns is None else time_ns
    return form + struct.pack("<iIQ", worker, lane, at) + proof.ljust(32, b"\0")


def message(*sizes: int, kind: int = 1, version: int = VERSION, count: int | None = None) -> bytes:
    """Return the start of a message: its header and the sizes of its parts."""
    number = len(sizes) if count is None else count
    return struct.pack(f"<BBHI{len(sizes)}Q", kind, version, 0, number, *sizes)


def piece(
    number: int,
    total: int,
    sizes: list[int],
    size: int,
    *,
    first: int = 0,
    offset: int = 0,
    parts: int = 0,
) -> bytes:
    """Return the start of a piece of a large message: its header, its head and the sizes of its parts.

    :param number: of the message; ``total``: bytes of the message; ``size``: bytes of the piece.
    :param first: the part that has the first byte, which is at ``offset`` in it.
    :param parts: the number of parts of the message; 0 for those of the piece.
    """
    head = struct.pack("<QQIIQQ", number, total, parts or len(sizes), first, offset, size)
    return (
        struct.pack("<BBHI", 5, VERSION, 0, len(sizes))
        + head
        + struct.pack(f"<{len(sizes)}Q", *sizes)
    )


def tls_client(secret_key: bytes) -> ssl.SSLContext:
    """Return a context with which a client proves that it has the key of a worker."""
    if shutil.which("openssl") is None:
        import pytest  # which the processes that the tests start do not need

        pytest.skip("there is no `openssl` here")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = Path(folder, "key.pem"), Path(folder, "certificate.pem")
        lines = base64.b64encode(secret_key).decode()
        key.write_text(f"-----BEGIN PRIVATE KEY-----\n{lines}\n-----END PRIVATE KEY-----\n")
        command = ["openssl", "req", "-new", "-x509", "-subj", "/CN=x", "-key", key]
        subprocess.run([*command, "-out", certificate], check=True, capture_output=True)
        context.load_cert_chain(certificate, key)
    return context


class Intruder:
    """A process that knows the protocol, and sends what it wants.

    :param by: the worker whose key it has; only with encryption.
    :param key_log: the file to which it writes the secrets of its connection.
    """

    def __init__(
        self,
        to: Worker,
        greeting: bytes,
        by: Worker | None = None,
        *,
        key_log: Path | None = None,
    ) -> None:
        port = int(to.endpoint.rpartition(":")[2])
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIME_LIMIT)
        if to.key is not None:
            assert by is not None
            assert by.secret is not None
            context = tls_client(by.secret)
            if key_log is not None:
                context.keylog_filename = str(key_log)
            self.socket = context.wrap_socket(self.socket)
        self.send(greeting)

    def send(self, *data: bytes) -> None:
        """Send bytes; the worker may have closed the connection."""
        with contextlib.suppress(OSError):
            self.socket.sendall(b"".join(data))

    def read(self, size: int) -> bytes:
        """Return so many bytes, or fewer if the connection has ended."""
        data = b""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while len(data) < size and (more := self.socket.recv(size - len(data))):
                data += more
        return data

    def rest(self) -> bytes:
        """Return everything until the connection ends."""
        return self.read(1 << 30)

    def admitted(self) -> Intruder:
        """Check that it is admitted."""
        answer = self.read(ANSWER_SIZE)
        assert answer[:12] == FORM + b"\1\0\0\0", answer
        return self

    def refusal(self) -> str:
        """Return why it was not admitted."""
        answer = self.read(ANSWER_SIZE)
        admitted, size = struct.unpack_from("<II", answer, len(FORM))
        assert not admitted
        return self.read(size).decode()


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
            env={**os.environ, **variables_of_child()},
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
    targets = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            targets[entry.name] = str(entry.readlink())
        except OSError:  # the descriptor that lists the folder
            continue
    return targets


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition that no event reports, by polling."""
    until = time.monotonic() + TIME_LIMIT
    while not condition():
        assert time.monotonic() < until, f"never: {what}"
        time.sleep(0.01)


# --- slow peers ----------------------------------------------------------------------------------


def slowly(step: Callable[[], object], seconds: float) -> float:
    """Repeat a step with pauses, until the connection ends at the latest.

    :returns: the longest time between two steps, in seconds.
    """
    times = [time.monotonic()]
    is_open = True
    while is_open and times[-1] < times[0] + seconds:
        time.sleep(0.1)
        try:
            step()
        except ConnectionError:
            is_open = False
        times.append(time.monotonic())
    return max(after - before for before, after in itertools.pairwise(times))


def check_kept(attempt: Callable[[], tuple[bool, float]], timeout: float) -> None:
    """Check that a slow peer is kept; try again if a busy machine has made it much slower than that.

    :param attempt: returns whether the peer was kept, and the longest time between two of its steps.
    :param timeout: seconds without a sign of it after which a peer is lost.
    """
    for _ in range(5):
        is_kept, longest = attempt()
        if is_kept:
            return
        assert longest >= timeout / 2, f"lost after a pause of {longest:.2f} s at most"
    raise AssertionError("this machine is too busy")
