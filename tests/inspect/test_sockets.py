"""The sockets of workers: only their user reads them, and no other user can pose as a worker."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from rpc_backends_inspect import sockets, workers
from support import steps
from support.children import started
from support.command import wait_until
from support.workers import Workers

_BECOME = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
"""


def as_other_user(program: str, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """Run a program as a user without rights, with pipes, until the end of the block."""
    return started(
        # Popen's `user` would not do: that user may not be allowed to execute this Python.
        [sys.executable, "-c", _BECOME + textwrap.dedent(program), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with sockets.listen() as listener:
        yield listener


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Workers]:
    """One worker with a recorder, and with a temporary folder of its own."""
    (tmp_path / "tmp").mkdir()
    env = {"RPC_BACKENDS_RECORDER": "on", "TMPDIR": str(tmp_path / "tmp")}
    with Workers(1, env=env) as started:
        started.run(steps.join, f"file://{tmp_path}/store", backend="TENSORPIPE")
        yield started


def only_socket(pid: int) -> str:
    """Return the name of a worker's socket, once it is the only one.

    The worker closes the socket that it had while it started. The kernel removes a closed socket only
    when no other process looks at it through ``/proc`` any more.
    """
    names: list[str] = []

    def is_only() -> bool:
        connected = [worker for worker in sockets.connect_all(5.0) if worker.pid == pid]
        for worker in connected:
            worker.connection.close()
        names[:] = [worker.name for worker in connected]
        return len(names) == 1

    wait_until(is_only)
    return names[0]


def test_a_socket_is_found_with_its_process(listener: socket.socket) -> None:
    connected = [worker for worker in sockets.connect_all(1.0) if worker.pid == os.getpid()]
    assert listener.getsockname() in [f"\0{worker.name}".encode() for worker in connected]
    for worker in connected:
        worker.connection.close()


def test_a_killed_worker_leaves_no_files(worker: Workers, tmp_path: Path) -> None:
    assert workers.running(pids=[worker[0].pid])
    worker[0].kill()
    assert list((tmp_path / "tmp").rglob("*")) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_another_user_reads_nothing(worker: Workers) -> None:
    name = only_socket(worker[0].pid)
    curious = as_other_user(
        """
        one = socket.socket(socket.AF_UNIX)
        one.connect("\\0" + sys.argv[1])
        try:
            one.sendall(b"a")
            print(one.recv(100))
        except OSError as error:
            print(type(error).__name__)
        """,
        name,
    )
    with curious as process:
        output, _ = process.communicate(timeout=60)
    assert output in {"b''\n", "ConnectionResetError\n", "BrokenPipeError\n"}
    assert [worker_state.problem for worker_state in workers.running(pids=[worker[0].pid])] == [""]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_a_socket_of_another_user_is_not_taken() -> None:
    posing = as_other_user(
        """
        one = socket.socket(socket.AF_UNIX)
        one.bind("\\0" + sys.argv[1])
        one.listen()
        print("ready", flush=True)
        sys.stdin.read()
        """,
        f"rpc-backends-inspect-{os.geteuid()}-0",
    )
    with posing as impostor:
        assert impostor.stdout is not None
        assert impostor.stdout.readline() == "ready\n"
        assert [worker for worker in sockets.connect_all(1.0) if worker.pid == impostor.pid] == []
        assert workers.running(pids=[impostor.pid]) == []


def test_an_unreadable_answer_is_reported(listener: socket.socket) -> None:
    """A process that only looks like a worker does not break the command."""

    def answer() -> None:
        with contextlib.suppress(OSError):  # the listener is shut down
            while True:  # other tests look at the workers of this host, too
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.recv(1)
                    connection.sendall(json.dumps({"version": 99}).encode())

    thread = threading.Thread(target=answer)
    thread.start()
    (state,) = workers.running(pids=[os.getpid()])
    listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    assert state.problem.startswith("gives no valid answer: its version is 99")


def test_names_that_a_peer_chose_are_harmless() -> None:
    assert workers._text("train.K\u00c3\u00bcche") == "train.Küche"
    assert workers._text("\x1b[2Jtrain") == r"\x1b[2Jtrain"
    assert workers._text("train.\u00ff") == "train.\u00ff"  # the bytes are no UTF-8


def test_a_stopped_worker_is_seen_at_each_look(listener: socket.socket) -> None:
    """It accepts no connection, so each look leaves one."""
    for _ in range(30):
        with contextlib.ExitStack() as connections:
            looks = sockets.connect_all(5.0)
            for look in looks:
                connections.callback(look.connection.close)
            assert os.getpid() in [look.pid for look in looks]
